/** Memory of an isolate, in bytes. */
export interface HeapUsage {
  /** Objects, those included that nobody holds any longer. */
  readonly usedSize: number
  /** Array buffers, likewise; a Wasm memory is not among them. */
  readonly backingStorageSize: number
}

/** Asks the inspector of `wrangler dev` at a port about the isolate that it runs. */
export async function openInspector(port: number): Promise<{ heap(): Promise<HeapUsage>; close(): void }> {
  const list = (await (await fetch(`http://127.0.0.1:${port}/json`)).json()) as { webSocketDebuggerUrl: string }[]
  // Node's client takes headers; wrangler asks for an origin.
  const options = { headers: { origin: 'http://localhost' } } as unknown as string[]
  const socket = new WebSocket(list[0].webSocketDebuggerUrl, options)
  await new Promise<void>((resolve, reject) => {
    socket.onopen = () => resolve()
    socket.onerror = () => reject(new Error('no inspector'))
  })
  const waiting = new Map<number, (result: HeapUsage) => void>()
  socket.onmessage = ({ data }) => {
    const { id, result } = JSON.parse(data as string) as { id: number; result: HeapUsage }
    waiting.get(id)?.(result)
  }
  let sent = 0
  const heap = () =>
    new Promise<HeapUsage>((resolve) => {
      waiting.set(++sent, resolve)
      socket.send(JSON.stringify({ id: sent, method: 'Runtime.getHeapUsage' }))
    })
  return { heap, close: () => socket.close() }
}
