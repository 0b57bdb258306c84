import { elementBytes, widen } from './lanes'

/*
 * Rows of the embedding table, widened.
 *
 *   ids [T] → | table row of id 0 | table row of id 1 | zeros, where an id is past the table | …
 */
export function lookup(ids: usize, tokens: i32, table: usize, dtype: i32, rows: u32, width: i32, output: usize): void {
  const row = (<usize>width) << 2
  for (const end = ids + ((<usize>tokens) << 2); ids < end; ids += 4, output += row) {
    const id = load<u32>(ids)
    if (id < rows) widen(table + <usize>id * <usize>width * elementBytes(dtype), dtype, width, output)
    else memory.fill(output, 0, row)
  }
}
