import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { brotliDecompressSync } from 'node:zlib'

const WANTED = ['libvk_swiftshader.so', 'libvulkan.so.1', 'vk_swiftshader_icd.json']

/** Unpacks the software GPU that comes with @sparticuz/chromium, once a machine, and makes the Vulkan loader find it. */
export function useSwiftShader(): void {
  const folder = unpack()
  process.env.VK_DRIVER_FILES = join(folder, 'vk_swiftshader_icd.json')
  try {
    process.dlopen({ exports: {} }, join(folder, 'libvulkan.so.1'), 0x2 | 0x1000) // RTLD_NOW | RTLD_NODELETE
  } catch (error) {
    // A library that is no Node module is loaded all the same, and then refused with this message.
    if (!/did not self-register/.test(String(error))) throw error
  }
}

function unpack(): string {
  const archive = join(binFolder(), 'swiftshader.tar.br')
  const folder = join(tmpdir(), `pariskv-swiftshader-147-${process.getuid?.() ?? 0}`)
  if (WANTED.every((name) => existsSync(join(folder, name)))) return folder
  mkdirSync(folder, { recursive: true })
  for (const { name, data } of untar(brotliDecompressSync(readFileSync(archive)))) {
    if (!WANTED.includes(name)) continue
    // Several test processes may unpack at once: each file appears whole.
    const part = join(folder, `${name}.${process.pid}`)
    writeFileSync(part, data, { mode: 0o755 })
    renameSync(part, join(folder, name))
  }
  return folder
}

function binFolder(): string {
  let folder = dirname(createRequire(import.meta.url).resolve('@sparticuz/chromium'))
  while (!existsSync(join(folder, 'bin', 'swiftshader.tar.br'))) {
    const up = dirname(folder)
    if (up === folder) throw new Error('@sparticuz/chromium has no bin/swiftshader.tar.br')
    folder = up
  }
  return join(folder, 'bin')
}

function* untar(tar: Uint8Array): Generator<{ name: string; data: Uint8Array }> {
  const text = (at: number, length: number) => {
    const bytes = tar.subarray(at, at + length)
    return new TextDecoder().decode(bytes.subarray(0, Math.max(0, bytes.indexOf(0))))
  }
  for (let at = 0; at + 512 <= tar.length && tar[at] !== 0; ) {
    const size = Number.parseInt(text(at + 124, 12), 8)
    const name = text(at, 100).split('/').pop() ?? ''
    if (size > 0) yield { name, data: tar.subarray(at + 512, at + 512 + size) }
    at += 512 + Math.ceil(size / 512) * 512
  }
}
