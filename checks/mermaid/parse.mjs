// Reads a JSON list of Mermaid diagrams from standard input and writes a list with "" or the error of each.
import { JSDOM } from "jsdom";

const page = new JSDOM("<!DOCTYPE html><body></body>");
globalThis.window = page.window; // Mermaid cleans labels with DOMPurify, which needs a document
globalThis.document = page.window.document;
const { default: mermaid } = await import("mermaid");

let input = "";
for await (const chunk of process.stdin) input += chunk;
const problems = [];
for (const diagram of JSON.parse(input)) {
  problems.push(await mermaid.parse(diagram).then(() => "", (error) => String(error.message).split("\n").slice(0, 4).join(" ")));
}
process.stdout.write(JSON.stringify(problems));
