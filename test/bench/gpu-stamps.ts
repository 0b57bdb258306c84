/** Device time of every encoder that is made on a device while it is watched, from its first command to its last. */
export class Stamps {
  /** @param slots encoders that are stamped at most */
  constructor(
    private readonly device: GPUDevice,
    private readonly slots: number,
  ) {}

  /** Runs `body` watched. @returns milliseconds of the encoders that were submitted, in the order they were made */
  async watch(body: () => Promise<void>): Promise<number[]> {
    const { device, slots } = this
    const querySet = device.createQuerySet({ type: 'timestamp', count: 2 * slots })
    const create = device.createCommandEncoder.bind(device)
    let used = 0
    device.createCommandEncoder = (descriptor) => {
      const encoder = create(descriptor)
      if (used < slots) stamp(encoder, querySet, 2 * used++)
      return encoder
    }
    try {
      await body()
    } finally {
      device.createCommandEncoder = create
    }
    const ticks = await readTicks(device, querySet, 2 * slots)
    querySet.destroy()
    const spans = Array.from({ length: used }, (_, i) => Number(ticks[2 * i + 1] - ticks[2 * i]) / 1e6)
    return spans.filter((span) => span > 0)
  }
}

function stamp(encoder: GPUCommandEncoder, querySet: GPUQuerySet, at: number): void {
  encoder.beginComputePass({ timestampWrites: { querySet, beginningOfPassWriteIndex: at } }).end()
  const finish = encoder.finish.bind(encoder)
  encoder.finish = (descriptor) => {
    encoder.beginComputePass({ timestampWrites: { querySet, endOfPassWriteIndex: at + 1 } }).end()
    return finish(descriptor)
  }
}

async function readTicks(device: GPUDevice, querySet: GPUQuerySet, count: number): Promise<BigInt64Array> {
  const bytes = 8 * count
  const resolved = device.createBuffer({ size: bytes, usage: 0x200 | 0x04 }) // QUERY_RESOLVE | COPY_SRC
  const staging = device.createBuffer({ size: bytes, usage: 0x01 | 0x08 }) // MAP_READ | COPY_DST
  const encoder = device.createCommandEncoder()
  encoder.resolveQuerySet(querySet, 0, count, resolved, 0)
  encoder.copyBufferToBuffer(resolved, 0, staging, 0, bytes)
  device.queue.submit([encoder.finish()])
  await staging.mapAsync(1)
  const ticks = new BigInt64Array(staging.getMappedRange().slice(0))
  resolved.destroy()
  staging.destroy()
  return ticks
}
