import type { DeviceState } from './webgpu-device.ts'

// Counts the threads of a workgroup that do not stand where their number says.
const PROBE = `enable subgroups;
@group(0) @binding(0) var<storage, read_write> strays: atomic<u32>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(subgroup_invocation_id) lane: u32,
  @builtin(subgroup_size) width: u32) {
  if (lid % width != lane) { atomicAdd(&strays, 1u); }
}`

/**
 * How many threads side by side in a workgroup are sure to be in one subgroup, in order: WebGPU promises no order, so the
 * device is asked. 0 without subgroups.
 */
export async function subgroupLanes(device: GPUDevice, state: DeviceState): Promise<number> {
  const width = device.adapterInfo?.subgroupMinSize ?? 0
  if (!device.features.has('subgroups') || width < 2) return 0
  const strays = device.createBuffer({ size: 4, usage: 0x80 | 0x04 }) // STORAGE | COPY_SRC
  const staging = device.createBuffer({ size: 4, usage: 0x01 | 0x08 }) // MAP_READ | COPY_DST
  try {
    const module = device.createShaderModule({ code: PROBE })
    const pipeline = await state.guard(device.createComputePipelineAsync({ layout: 'auto', compute: { module } }))
    const entries = [{ binding: 0, resource: { buffer: strays } }]
    const encoder = device.createCommandEncoder()
    const pass = encoder.beginComputePass()
    pass.setPipeline(pipeline)
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }))
    pass.dispatchWorkgroups(1)
    pass.end()
    encoder.copyBufferToBuffer(strays, 0, staging, 0, 4)
    device.queue.submit([encoder.finish()])
    await state.guard(staging.mapAsync(1)) // READ
    const [count] = new Uint32Array(staging.getMappedRange())
    return count === 0 ? width : 0
  } catch {
    await state.settle()
    return 0
  } finally {
    strays.destroy()
    staging.destroy()
  }
}
