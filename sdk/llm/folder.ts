import { describe, ParisError } from '../errors.ts'
import { headerBytes, parseHeader, STORED_BYTES, type StoredDtype, type TensorEntry } from '../safetensors.ts'
import { badModel, checkName, type ModelSource, readJson } from './source.ts'

/** One tensor of a folder and where its bytes are. */
export interface StoredTensor extends TensorEntry<StoredDtype> {
  readonly name: string
  readonly file: string
  /** First byte of it in the file. */
  readonly at: number
}

/** All tensors of a folder. */
export interface StoredTensors {
  /** The file that says which there are. */
  readonly listing: string
  readonly tensors: ReadonlyMap<string, StoredTensor>
}

const INDEX = 'model.safetensors.index.json'
const SINGLE = 'model.safetensors'
const AGAIN = 'Take the file from its source again.'

/**
 * All tensors of a folder: of the files that model.safetensors.index.json names, else of model.safetensors.
 * @throws ParisError `bad_model` for a missing or truncated file, an index that names a tensor its file lacks, or a name
 * that leads outside the folder
 */
export async function readTensors(source: ModelSource): Promise<StoredTensors> {
  const files = await source.list()
  if (!files.includes(INDEX)) return { listing: SINGLE, tensors: await readShard(source, SINGLE) }
  const { weight_map: map } = await readJson(source, INDEX)
  if (typeof map !== 'object' || map === null || Array.isArray(map) || Object.keys(map).length === 0)
    throw badModel(INDEX, `weight_map ${describe(map)}`, 'an object of tensor names and files', AGAIN)
  const wanted = Object.entries(map).map(([name, file]) => [name, checkName(file, INDEX)] as const)
  const shards = new Map<string, Map<string, StoredTensor>>()
  for (const file of new Set(wanted.map(([, file]) => file))) shards.set(file, await readShard(source, file))
  const tensors = new Map<string, StoredTensor>()
  for (const [name, file] of wanted) {
    const tensor = shards.get(file)?.get(name)
    if (!tensor) throw badModel(INDEX, `${describe(name)} in ${file}, which lacks it`, 'tensors that are there', AGAIN)
    tensors.set(name, tensor)
  }
  return { listing: INDEX, tensors }
}

async function readShard(source: ModelSource, file: string): Promise<Map<string, StoredTensor>> {
  const size = await source.size(file)
  if (size < 10) throw badModel(file, `${size} bytes`, 'a safetensors file', AGAIN)
  const header = await readHeader(source, file, size)
  const whole = header.dataStart + header.dataBytes
  if (size !== whole) throw badModel(file, `${size} bytes`, `the ${whole} bytes that its header describes`, AGAIN)
  const entries = [...header.tensors].map(([name, entry]) => {
    return [name, { ...entry, name, file, at: header.dataStart + entry.start }] as const
  })
  return new Map(entries)
}

async function readHeader(source: ModelSource, file: string, size: number) {
  try {
    const bytes = headerBytes(await source.read(file, 0, 8), undefined, file)
    if (8 + bytes > size) throw badModel(file, `${size} bytes`, `more than the ${8 + bytes} of its header`, AGAIN)
    return parseHeader(await source.read(file, 8, 8 + bytes), file, STORED_BYTES)
  } catch (cause) {
    if (!(cause instanceof ParisError) || cause.code !== 'snapshot_corrupt') throw cause
    throw badModel(file, cause.got, cause.want, cause.fix, cause)
  }
}
