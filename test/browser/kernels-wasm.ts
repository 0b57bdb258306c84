const kernels = await WebAssembly.compileStreaming(fetch('/build/kernels.wasm'))

export function compileKernels(): WebAssembly.Module {
  return kernels
}
