import { createHash } from 'node:crypto'

/** A snapshot's header as JSON. */
export interface SnapshotHeader {
  __metadata__: Record<string, string>
  [tensor: string]: { dtype: string; shape: number[]; data_offsets: [number, number] } | Record<string, string>
}
export type TensorEntry = { dtype: string; shape: number[]; data_offsets: [number, number] }

const dataStart = (file: Uint8Array) => 8 + Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true))

export function headerOf(file: Uint8Array): SnapshotHeader {
  return JSON.parse(new TextDecoder().decode(file.subarray(8, dataStart(file))))
}

/** Where a tensor's bytes lie in the file. */
export function placeOf(file: Uint8Array, tensor: string): [number, number] {
  const [from, to] = (headerOf(file)[tensor] as TensorEntry).data_offsets
  return [dataStart(file) + from, dataStart(file) + to]
}

/** The same file with a changed header or data and a digest that is right for it. */
export function rewritten(
  file: Uint8Array,
  edit: (header: SnapshotHeader, data: Uint8Array) => void,
  rename: (json: string) => string = (json) => json,
): Uint8Array {
  const header = headerOf(file)
  const data = file.slice(dataStart(file))
  edit(header, data)
  const build = (sha256: string) => {
    header.__metadata__.sha256 = sha256
    const json = new TextEncoder().encode(rename(JSON.stringify(header)))
    const out = new Uint8Array(8 + json.length + data.length)
    new DataView(out.buffer).setBigUint64(0, BigInt(json.length), true)
    out.set(json, 8)
    out.set(data, 8 + json.length)
    return out
  }
  return build(
    createHash('sha256')
      .update(build('0'.repeat(64)))
      .digest('hex'),
  )
}

/** Changes fields of the configuration that a header carries. */
export function reconfigured(file: Uint8Array, change: (config: Record<string, unknown>) => void): Uint8Array {
  return rewritten(file, ({ __metadata__ }) => {
    const config = JSON.parse(__metadata__.config)
    change(config)
    __metadata__.config = JSON.stringify(config)
  })
}
