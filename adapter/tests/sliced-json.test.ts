import { describe, expect, it } from "vitest";
import { parseJsonInSlices } from "../src/sliced-json.ts";

const DIFFICULT = [
  "",
  'say "yes"',
  "\\",
  '\\\\\\"\\',
  "\n\r\t\b\f\u0000\u2028",
  "é€😀\ud800",
  '","data":"x"}',
  "a".repeat(50),
];

describe("a record with a long line", () => {
  it.each(DIFFICULT)("is read as it was written, wherever a slice ends: %j", async (text) => {
    for (const data of [text, `${text}x`.repeat(9), `${"y".repeat(5)}${text.repeat(7)}`]) {
      for (const record of [
        { sequence: 1, at: "now", data },
        { data, stream: "stdout" },
        { name: '"data":"no', data },
      ]) {
        const json = JSON.stringify(record);
        for (let piece = 7; piece < 30; piece += 5)
          expect(await parseJsonInSlices(json, "data", piece)).toEqual(record);
        const escapes = json.replace(/[^ -~]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
        expect(await parseJsonInSlices(escapes, "data", 11)).toEqual(record);
      }
    }
  });

  it.each(['{"data":"without an end', '{"data":"a\\', "[1", '{"sequence":1,"data":"abc"'])(
    "is refused when it is cut off: %s",
    async (json) => {
      await expect(parseJsonInSlices(json, "data", 8)).rejects.toThrow(SyntaxError);
    },
  );

  it("may lack the field, or be no object", async () => {
    expect(await parseJsonInSlices('{"sequence":123456789}', "data", 4)).toEqual({ sequence: 123456789 });
    expect(await parseJsonInSlices("[1,2,3,4,5]", "data", 4)).toEqual([1, 2, 3, 4, 5]);
  });
});
