/** Memory of an isolate right behind a collection, in bytes: what is held. */
export interface HeldMemory {
  /** Objects and code. */
  readonly heap: number
  /** Array buffers. */
  readonly buffers: number
  /** Linear memories of WebAssembly, as far as they have grown. */
  readonly linear: number
}

/** What the inspector sends: an answer or an event. */
interface Message {
  readonly id?: number
  readonly result?: object
  readonly error?: object
  readonly method?: string
  readonly params: { readonly context: { readonly id: number } }
}

/** Asks the inspector of `wrangler dev` at a port about the isolate that it runs. */
export async function openInspector(port: number): Promise<{ held(): Promise<HeldMemory>; close(): void }> {
  const list = (await (await fetch(`http://127.0.0.1:${port}/json`)).json()) as { webSocketDebuggerUrl: string }[]
  // Node's client takes headers; wrangler asks for an origin.
  const options = { headers: { origin: 'http://localhost' } } as unknown as string[]
  const socket = new WebSocket(list[0].webSocketDebuggerUrl, options)
  const waiting = new Map<number, (message: Message) => void>()
  const context = new Promise<number>((resolve, reject) => {
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data as string) as Message
      if (message.method === 'Runtime.executionContextCreated') resolve(message.params.context.id)
      if (message.id !== undefined) waiting.get(message.id)?.(message)
    }
    socket.onerror = () => reject(new Error('no inspector'))
  })
  let sent = 0
  async function ask<T>(method: string, params: object = {}): Promise<T> {
    const id = ++sent
    const { result, error } = await new Promise<Message>((resolve) => {
      waiting.set(id, resolve)
      socket.send(JSON.stringify({ id, method, params }))
    })
    waiting.delete(id)
    if (error) throw new Error(`${method}: ${JSON.stringify(error)}`)
    return result as T
  }
  const memories = { expression: 'WebAssembly.Memory.prototype', contextId: await context }
  const { result: prototype } = await ask<{ result: { objectId: string } }>('Runtime.evaluate', memories)
  async function held(): Promise<HeldMemory> {
    // Collects before it looks; workerd does not answer HeapProfiler.collectGarbage.
    const { objects } = await ask<{ objects: { objectId: string } }>('Runtime.queryObjects', {
      prototypeObjectId: prototype.objectId,
    })
    const { usedSize, backingStorageSize } = await ask<{ usedSize: number; backingStorageSize: number }>(
      'Runtime.getHeapUsage',
    )
    const { result } = await ask<{ result: { value: number } }>('Runtime.callFunctionOn', {
      objectId: objects.objectId,
      functionDeclaration: 'function () { return this.reduce((sum, { buffer }) => sum + buffer.byteLength, 0) }',
      returnByValue: true,
    })
    await ask('Runtime.releaseObject', { objectId: objects.objectId })
    return { heap: usedSize, buffers: backingStorageSize, linear: result.value }
  }
  return { held, close: () => socket.close() }
}
