// XXH3-64 with seed 0, and the sums of payloads by blocks.

import { createXXHash3, type IHasher } from "hash-wasm";

const BLOCK_BYTES = 1 << 20;

let hasher: IHasher | undefined;

export async function xxh3(bytes: Uint8Array): Promise<bigint> {
  hasher ??= await createXXHash3(0, 0);
  return BigInt("0x" + hasher.init().update(bytes).digest("hex"));
}

/** The sum of each block of 1 MiB. */
export async function blockSums(payload: Uint8Array): Promise<bigint[]> {
  const sums: bigint[] = [];
  for (let begin = 0; begin < payload.length; begin += BLOCK_BYTES) {
    sums.push(await xxh3(payload.subarray(begin, begin + BLOCK_BYTES)));
  }
  return sums;
}

/** The sum of a payload: of its only block, or of the sums of its blocks. */
export async function payloadSum(payload: Uint8Array): Promise<bigint> {
  if (payload.length <= BLOCK_BYTES) return xxh3(payload);
  const sums = new BigUint64Array(await blockSums(payload)); // little endian on every machine that Node.js runs on
  return xxh3(new Uint8Array(sums.buffer));
}

export function compare(what: string, expected: bigint | undefined, actual: bigint): void {
  if (expected !== undefined && expected !== actual) {
    throw new Error(`${what}: checksum is ${expected.toString(16)}, bytes have ${actual.toString(16)}`);
  }
}

/** Compares the blocks in a chunk with their sums. */
export async function checkChunk(what: string, expected: bigint[], data: Uint8Array): Promise<void> {
  const actual = await blockSums(data);
  if (actual.length !== expected.length) throw new Error(`${what}: ${expected.length} sums of ${actual.length} blocks`);
  actual.forEach((sum, i) => compare(`${what}, block ${i}`, expected[i], sum));
}
