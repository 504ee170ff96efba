// Reads a tensor file with the standard parser, and checks every sum.

import { readFile } from "node:fs/promises";
import { fromBinary } from "@bufbuild/protobuf";
import { TensorFileSchema, type TensorFile } from "./gen/dlpack_wire/v1/tensor_file_pb.js";
import { compare, payloadSum, xxh3 } from "./xxh3.js";

const TRAILER_BYTES = 27;

export async function readTensorFile(path: string): Promise<TensorFile> {
  const bytes = await readFile(path);
  const file = fromBinary(TensorFileSchema, bytes);
  const magic = Buffer.alloc(8);
  magic.writeBigUInt64LE(file.magic);
  if (magic.toString("latin1") !== "DLPWIRE1") throw new Error(`${path} is not a tensor file`);

  const index = bytes.subarray(Number(file.indexOffset), bytes.length - 18);
  if (bytes.length - Number(file.indexOffset) < TRAILER_BYTES) throw new Error("index lies outside the file");
  compare("index", file.indexXxh364, await xxh3(index));

  for (const record of file.records) {
    if (record.tensor === undefined) throw new Error(`record ${record.name} has no tensor`);
    compare(`tensor ${record.name}`, record.tensor.dataSum, await payloadSum(record.tensor.data));
  }
  for (const entry of file.indexes.at(-1)?.entries ?? []) {
    // The header sum takes its own 8 bytes as zero: they stand before the tensor's tag and length.
    const head = Buffer.from(bytes.subarray(Number(entry.recordOffset), Number(entry.dataOffset)));
    const record = file.records.find((r) => r.name === entry.name);
    const sum = Buffer.alloc(8);
    sum.writeBigUInt64LE(record?.headerXxh364 ?? 0n);
    const at = head.indexOf(Buffer.concat([Buffer.from([0x71]), sum]));
    if (at < 0) throw new Error(`record ${entry.name} has no header sum`);
    head.fill(0, at + 1, at + 9);
    compare(`header of ${entry.name}`, record?.headerXxh364, await xxh3(head));
  }
  return file;
}
