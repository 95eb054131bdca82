// Writes what OpenCode's own list of models has of some providers into FILE, which OPENCODE_MODELS_PATH may then name:
//
//   BUN_BE_BUN=1 opencode models.mjs FILE PROVIDER...
//
// With this variable a program that Bun has compiled runs a script instead of itself. The list is an object in OpenCode's
// code; no command and no route of its server has it as it is, only what OpenCode has made of it. It is taken from code
// that treats it like the content of a file, and only if it has all of these providers; otherwise this fails, and
// OpenCode reads its whole list.
// Source: OpenCode 1.18.33, its module ModelsDev.

import { openSync, readSync, writeFileSync } from "node:fs"

const BLOCK = 16 << 20 // bytes, several times those of the list
const LIST = /\.sync\(\(\)=>\((\{[\x20-\x7e]*\})\)\),[\w$]+=[\w$]+\.fn\($/
const FILE_OR_LIST =
  /^.{0,400}\bif\(([\w$]+)\)return \1;let ([\w$]+)=yield\*[\w$]+;if\(\2\)return \2;if\([\w$]+\.OPENCODE_DISABLE_MODELS_FETCH\)/s

const program = openSync(process.execPath, "r")
const block = Buffer.allocUnsafe(BLOCK)

// The program's text from the first occurrence of `word` on, one block of it.
function textFrom(word) {
  for (let offset = 0; ; offset += BLOCK - word.length) {
    const size = readSync(program, block, 0, BLOCK, offset)
    const found = block.subarray(0, size).indexOf(word)
    if (found >= 0) return block.toString("latin1", 0, readSync(program, block, 0, BLOCK, offset + found))
    if (size < BLOCK) throw new Error(`no ${word}`)
  }
}

const [file, ...names] = process.argv.slice(2)
const [before, after] = textFrom('"ModelsDev.fetchApi"').split('"ModelsDev.fetchAndWrite"')
if (!FILE_OR_LIST.test(after)) throw new Error("list and file may not be treated alike")
const whole = (0, eval)(`(${LIST.exec(before)[1]})`)
const short = Object.fromEntries(Object.entries(whole).filter(([name]) => names.includes(name)))
for (const name of names) {
  if (short[name]?.id !== name || !Object.keys(short[name].models).length) throw new Error(`no provider ${name}`)
}
writeFileSync(file, JSON.stringify(short))
