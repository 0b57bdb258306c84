import { BackendUnavailable } from '../sdk/index.ts'

/** navigator.gpu. @throws BackendUnavailable where it is missing */
export async function navigatorGpu(): Promise<GPU> {
  const gpu = globalThis.navigator?.gpu
  if (gpu) return gpu
  throw new BackendUnavailable(
    'webgpu',
    'no navigator.gpu',
    'Serve the page over https; take a browser or Deno with WebGPU.',
  )
}

/** Fetches and compiles a module, whatever content type the server gives it. */
export async function compileFrom(url: URL): Promise<WebAssembly.Module> {
  const response = await fetch(url)
  if (!response.ok) throw new Error(`${url} answered ${response.status}`)
  return WebAssembly.compile(await response.arrayBuffer())
}
