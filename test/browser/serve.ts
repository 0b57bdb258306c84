import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

const root = new URL('../../', import.meta.url)
const TYPES: Readonly<Record<string, string>> = { js: 'text/javascript', wasm: 'application/wasm' }

/** A page's origin on this machine, until it is disposed of. */
export interface Served extends AsyncDisposable {
  readonly url: string
}

/** Serves an empty page, the given files by their paths, and the safetensors files of the repository. */
export async function serve(files: ReadonlyMap<string, string | Uint8Array>): Promise<Served> {
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://localhost')
    const ending = pathname.split('.').pop() ?? ''
    const stored = async () =>
      ending === 'safetensors' ? readFile(new URL(`.${pathname}`, root)).catch(() => undefined) : undefined
    const body =
      pathname === '/' ? '<!doctype html><link rel="icon" href="data:,">' : (files.get(pathname) ?? (await stored()))
    const type = pathname === '/' ? 'text/html' : (TYPES[ending] ?? 'application/octet-stream')
    response.writeHead(body === undefined ? 404 : 200, { 'content-type': type })
    response.end(body)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', resolve)
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
