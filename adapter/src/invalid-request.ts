/** What Paperclip hands over cannot be sent to a worker: the field by Paperclip's path, and the remedy; never a value. */
export class InvalidRequest extends Error {
  override readonly name = "InvalidRequest";
}
