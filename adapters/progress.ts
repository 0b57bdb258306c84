/** A progress line on stderr: redrawn on a terminal, a line a quarter elsewhere. */
export function progressBar(label: string): (done: number, total: number) => void {
  let shown = -1
  return (done, total) => {
    const share = total === 0 ? 1 : done / total
    const step = Math.floor(share * (process.stderr.isTTY ? 100 : 4))
    if (step === shown) return
    shown = step
    const filled = Math.round(share * 30)
    const bar = `${label.padEnd(12)} [${'='.repeat(filled)}${' '.repeat(30 - filled)}] ${String(Math.round(share * 100)).padStart(3)}%`
    process.stderr.write(process.stderr.isTTY ? `\r${bar}${share === 1 ? '\n' : ''}` : `${bar}\n`)
  }
}
