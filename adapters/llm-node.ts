/** The model runner where there is a file system: Node, Bun and Deno. */

export * from '../sdk/llm/index.ts'
export { openModelFolder } from './node-files.ts'
