// XXH3-64 with seed 0, of whole buffers and running.

import { createXXHash3, type IHasher } from "hash-wasm";

export class RunningSum {
  private constructor(private readonly hasher: IHasher) {}

  static async create(): Promise<RunningSum> {
    return new RunningSum((await createXXHash3(0, 0)).init());
  }

  /** Takes more bytes and returns the sum of all so far. */
  update(bytes: Uint8Array): bigint {
    this.hasher.update(bytes);
    const state = this.hasher.save(); // digest() ends a run
    const sum = BigInt("0x" + this.hasher.digest("hex"));
    this.hasher.load(state);
    return sum;
  }
}

export async function xxh3(bytes: Uint8Array): Promise<bigint> {
  return (await RunningSum.create()).update(bytes);
}

export async function check(what: string, expected: bigint | undefined, bytes: Uint8Array): Promise<void> {
  const actual = await xxh3(bytes);
  if (expected !== undefined && expected !== actual) {
    throw new Error(`${what}: checksum is ${expected.toString(16)}, bytes have ${actual.toString(16)}`);
  }
}
