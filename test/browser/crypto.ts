import { sha256 } from '@noble/hashes/sha2.js'
import { bytesToHex } from '@noble/hashes/utils.js'

/** As much of node:crypto as the suites need. */
export function createHash(_algorithm: 'sha256') {
  const hash = sha256.create()
  return {
    update(data: Uint8Array) {
      hash.update(data)
      return this
    },
    digest: (_encoding: 'hex') => bytesToHex(hash.digest()),
  }
}
