/** Encoder: decode steps recorded into your own commands on the engine's GPUDevice, with no readback in between. */
import { createEngine } from 'pariskv'

const shape = { layers: 4, queryHeads: 8, kvHeads: 2, headDim: 64 }
const prompt = 3000
/** GPUBufferUsage, which is not a global everywhere. */
const GPU = { STORAGE: 0x80, COPY_SRC: 0x04, COPY_DST: 0x08 }
const random = (length: number) => Float32Array.from({ length }, () => Math.random() * 2 - 1)

/** `--software` takes a software GPU too, which `auto` passes over. */
const engine = await createEngine({ device: process.argv.includes('--software') ? 'webgpu' : 'auto' })
const { gpu } = engine
try {
  if (!gpu) {
    const reasons = engine.info.passedOver.map(({ name, reason }) => `${name}: ${reason}`).join('; ')
    console.log(`This example needs a GPU; the engine runs on ${engine.info.backend} here (${reasons}).`)
  } else await decode(gpu)
} finally {
  await engine.dispose()
}

async function decode(gpu: GPUDevice): Promise<void> {
  const options = { ...shape, capacity: 4096, store: 'bf16', policy: { k: 64 } } as const
  await engine.warm(options)
  const session = await engine.createSession(options)
  const size = shape.kvHeads * prompt * shape.headDim
  for (let layer = 0; layer < shape.layers; layer++)
    await session.append(layer, { keys: random(size), values: random(size) })

  // What a model's own kernels would leave on the device: keys and values [H, 1, d], queries [Hq, d], f32.
  const [rows, heads] = [shape.kvHeads, shape.queryHeads].map((count) => count * shape.headDim)
  const upload = (data: Float32Array<ArrayBuffer>) => {
    const buffer = gpu.createBuffer({ size: data.byteLength, usage: GPU.STORAGE | GPU.COPY_DST })
    gpu.queue.writeBuffer(buffer, 0, data)
    return buffer
  }
  const output = gpu.createBuffer({ size: heads * 4, usage: GPU.STORAGE | GPU.COPY_SRC })

  const encoder = gpu.createCommandEncoder()
  const releases = []
  for (let layer = 0; layer < shape.layers; layer++) {
    const [keys, values, queries] = [upload(random(rows)), upload(random(rows)), upload(random(heads))]
    releases.push(session.encodeAppend(encoder, layer, { keys, values, tokens: 1 }))
    releases.push(session.encodeAttend(encoder, layer, { queries, output }))
    // The model's next kernels read `output` here, in the same encoder.
  }
  gpu.queue.submit([encoder.finish()])
  for (const release of releases) release()

  await gpu.queue.onSubmittedWorkDone()
  const { ok, refused } = await session.check()
  console.log(`${engine.info.description}: one token through ${shape.layers} layers in one submit, nothing read back`)
  console.log(`layer 0 holds ${session.length(0)} tokens; codes ${ok ? 'are' : 'are not'} those of the keys`)
  console.log(`${refused} values were not finite`)
}
