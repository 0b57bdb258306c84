import { chooseBackend, createReferenceBackend, type Device, Engine } from '../sdk/index.ts'

export * from '../sdk/index.ts'

/** Options of `createEngine`. */
export interface EngineOptions {
  /** `auto` (default) takes the fastest backend that runs here; see `engine.info` for what won and why. */
  readonly device?: Device
}

/** Opens an engine. @throws ParisError `backend_unavailable` where the device asked for cannot run here */
export async function createEngine({ device = 'auto' }: EngineOptions = {}): Promise<Engine> {
  const { backend, passedOver } = await chooseBackend(device, [
    { name: 'reference', open: async () => createReferenceBackend() },
  ])
  return new Engine(backend, passedOver)
}
