import { describe, expect, it } from "vitest";
import { longJson } from "../src/long-json.ts";

const HARD = [
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
  it.each(HARD)("is read as it was written, wherever it is cut: %j", async (text) => {
    for (const data of [text, `${text}x`.repeat(9), `${"y".repeat(5)}${text.repeat(7)}`]) {
      for (const record of [
        { sequence: 1, at: "now", data },
        { data, stream: "stdout" },
        { name: '"data":"no', data },
      ]) {
        const told = JSON.stringify(record);
        for (let piece = 7; piece < 30; piece += 5) expect(await longJson(told, "data", piece)).toEqual(record);
        const escapes = told.replace(/[^ -~]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
        expect(await longJson(escapes, "data", 11)).toEqual(record);
      }
    }
  });

  it.each(['{"data":"without an end', '{"data":"a\\', "[1", '{"sequence":1,"data":"abc"'])(
    "is refused when it is cut off: %s",
    async (told) => {
      await expect(longJson(told, "data", 8)).rejects.toThrow(SyntaxError);
    },
  );

  it("may be something else", async () => {
    expect(await longJson('{"sequence":123456789}', "data", 4)).toEqual({ sequence: 123456789 });
    expect(await longJson("[1,2,3,4,5]", "data", 4)).toEqual([1, 2, 3, 4, 5]);
  });
});
