/*
 * [outer, inner, d] → [inner, outer, d], each row turned by its token's angles where there is a table.
 *
 *   row    | a: d/2 | b: d/2 |
 *   table  | cos    | sin    |   → | a·cos − b·sin | b·cos + a·sin |
 */
export function rope(
  input: usize,
  outer: i32,
  inner: i32,
  d: i32,
  output: usize,
  table: usize,
  tokensOuter: bool,
): void {
  const row = (<usize>d) << 2
  for (let o: usize = 0; o < <usize>outer; o++)
    for (let i: usize = 0; i < <usize>inner; i++, input += row) {
      const to = output + (i * <usize>outer + o) * row
      if (table) turn(input, table + (tokensOuter ? o : i) * row, row >> 1, to)
      else memory.copy(to, input, row)
    }
}

function turn(x: usize, table: usize, half: usize, y: usize): void {
  for (const end = x + half; x < end; x += 16, y += 16, table += 16) {
    const a = v128.load(x)
    const b = v128.load(x + half)
    const cos = v128.load(table)
    const sin = v128.load(table + half)
    v128.store(y, f32x4.sub(f32x4.mul(a, cos), f32x4.mul(b, sin)))
    v128.store(y + half, f32x4.add(f32x4.mul(b, cos), f32x4.mul(a, sin)))
  }
}
