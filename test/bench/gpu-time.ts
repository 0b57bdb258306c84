import type { WebgpuBackend } from '../../sdk/backends/webgpu.ts'

const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1]

/**
 * Median GPU milliseconds of each stage, each in a pass of its own between two timestamps, in one submit a round.
 * @param stages what each records
 */
export async function gpuTimes(
  backend: WebgpuBackend,
  stages: readonly (() => void)[],
  rounds: number,
): Promise<number[]> {
  const { device } = backend
  await backend.warm(() => {
    for (const stage of stages) stage()
  })
  const querySet = device.createQuerySet({ type: 'timestamp', count: 2 * stages.length })
  const bytes = 16 * stages.length
  const resolved = device.createBuffer({ size: bytes, usage: 0x200 | 0x04 }) // QUERY_RESOLVE | COPY_SRC
  const staging = device.createBuffer({ size: bytes, usage: 0x01 | 0x08 }) // MAP_READ | COPY_DST
  const samples: number[][] = stages.map(() => [])
  const burn = rounds > 2 ? await burner(device) : () => {}
  for (const until = performance.now() + 50 * rounds; rounds > 2 && performance.now() < until; ) {
    for (let i = 0; i < 20; i++) {
      const busy = device.createCommandEncoder()
      burn(busy)
      device.queue.submit([busy.finish()])
    }
    await device.queue.onSubmittedWorkDone()
  }
  for (let round = 0; round < rounds + 2; round++) {
    const encoder = device.createCommandEncoder()
    burn(encoder)
    const releases = stages.map((stage, i) => backend.recordInto(timed(encoder, querySet, 2 * i), stage))
    encoder.resolveQuerySet(querySet, 0, 2 * stages.length, resolved, 0)
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, bytes)
    device.queue.submit([encoder.finish()])
    await staging.mapAsync(1)
    const ticks = new BigUint64Array(staging.getMappedRange().slice(0))
    staging.unmap()
    for (const release of releases) release()
    if (round >= 2) stages.forEach((_, i) => void samples[i].push(Number(ticks[2 * i + 1] - ticks[2 * i]) / 1e6))
  }
  querySet.destroy()
  resolved.destroy()
  staging.destroy()
  return samples.map(median)
}

const BURN = `
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  var x = f32(id.x);
  for (var i = 0u; i < 30000u; i++) { x = fma(x, 0.999, 0.5); }
  out[id.x] = x;
}`

/**
 * Some milliseconds of arithmetic, or fewer `times`, to record before what is timed: a card that idles between short submits runs at a
 * fraction of its clock. Touches no memory to speak of, so caches stay as they are.
 */
export async function burner(device: GPUDevice, times = 8): Promise<(encoder: GPUCommandEncoder) => void> {
  const module = device.createShaderModule({ code: BURN })
  const pipeline = await device.createComputePipelineAsync({ layout: 'auto', compute: { module } })
  const threads = 1056 * 256
  const buffer = device.createBuffer({ size: threads * 4, usage: 0x80 }) // STORAGE
  const entries = [{ binding: 0, resource: { buffer } }]
  const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries })
  return (encoder) => {
    const pass = encoder.beginComputePass()
    pass.setPipeline(pipeline)
    pass.setBindGroup(0, group)
    for (let i = 0; i < times; i++) pass.dispatchWorkgroups(threads / 256)
    pass.end()
  }
}

/** An encoder whose passes write timestamps: the first begins at `index`, every one ends at `index` + 1. */
function timed(encoder: GPUCommandEncoder, querySet: GPUQuerySet, index: number): GPUCommandEncoder {
  let first = true
  const beginComputePass = () => {
    const beginningOfPassWriteIndex = first ? { beginningOfPassWriteIndex: index } : {}
    first = false
    return encoder.beginComputePass({
      timestampWrites: { querySet, ...beginningOfPassWriteIndex, endOfPassWriteIndex: index + 1 },
    })
  }
  return {
    beginComputePass,
    copyBufferToBuffer: (...args: Parameters<GPUCommandEncoder['copyBufferToBuffer']>) =>
      encoder.copyBufferToBuffer(...args),
    clearBuffer: (...args: Parameters<GPUCommandEncoder['clearBuffer']>) => encoder.clearBuffer(...args),
  } as GPUCommandEncoder
}

/** Median wall milliseconds of `body`, which must wait for what it starts. */
export async function wallTime(body: () => Promise<unknown>, rounds: number): Promise<number> {
  const samples: number[] = []
  for (let round = 0; round < rounds + 2; round++) {
    const from = performance.now()
    await body()
    if (round >= 2) samples.push(performance.now() - from)
  }
  return median(samples)
}
