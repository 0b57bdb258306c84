/** Names the program of every dispatch that encoders made on the device from now on record, in order. */
export function watchDispatches(device: GPUDevice): string[] {
  const names: string[] = []
  const create = device.createCommandEncoder.bind(device)
  device.createCommandEncoder = (descriptor) => {
    const encoder = create(descriptor)
    const begin = encoder.beginComputePass.bind(encoder)
    encoder.beginComputePass = (options) => {
      const pass = begin(options)
      let label = ''
      const set = pass.setPipeline.bind(pass)
      pass.setPipeline = (pipeline) => {
        label = pipeline.label
        set(pipeline)
      }
      const dispatch = pass.dispatchWorkgroups.bind(pass)
      pass.dispatchWorkgroups = (...size: Parameters<typeof dispatch>) => {
        names.push(label)
        dispatch(...size)
      }
      return pass
    }
    return encoder
  }
  return names
}
