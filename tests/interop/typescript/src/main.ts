// node build/main.js read FILE               checks a tensor file and prints what it holds
// node build/main.js put ADDRESS NAME FILE   puts a file's tensors as one object and prints its generation
// node build/main.js get ADDRESS NAME OUT    gets an object, writes its payloads one after the other, prints what they are
// node build/main.js publish ADDRESS TOPIC FILE      publishes a file's tensors and prints the last sequence
// node build/main.js subscribe ADDRESS PATTERN COUNT prints "ready", then so many frames

import { writeFile } from "node:fs/promises";
import { type TensorRecord } from "./gen/dlpack_wire/v1/tensor_file_pb.js";
import { Client } from "./service.js";
import { readTensorFile } from "./file.js";

function describe(record: TensorRecord): object {
  const { dtype, shape, strides, dataSum } = record.tensor!;
  return {
    name: record.name,
    aliases: record.aliases,
    dtype: [dtype!.code, dtype!.bits, dtype!.lanes],
    shape: shape.map(String),
    strides: strides.map(String),
    sum: dataSum?.toString(),
  };
}

async function main(): Promise<void> {
  const [command, ...rest] = process.argv.slice(2);
  if (command === "read" && rest.length === 1) {
    const file = await readTensorFile(rest[0]!);
    for (const record of file.records) {
      console.log(JSON.stringify({ ...describe(record), data: Buffer.from(record.tensor!.data).toString("hex") }));
    }
    return;
  }
  if (!["put", "get", "publish", "subscribe"].includes(command!) || rest.length !== 3) {
    throw new Error("usage: read|put|get|publish|subscribe ...");
  }
  const [address, name, path] = rest as [string, string, string];
  const client = new Client(address);
  try {
    if (command === "put") {
      const file = await readTensorFile(path);
      console.log(JSON.stringify({ generation: String(await client.put(name, file.records)) }));
    } else if (command === "publish") {
      const file = await readTensorFile(path);
      console.log(JSON.stringify({ sequence: String(await client.publish(name, file.records)) }));
    } else if (command === "subscribe") {
      const frames = await client.subscribe(name, Number(path), () => console.log('"ready"'));
      for (const { frame, payload } of frames) {
        const { topic, sequence, droppedCount } = frame;
        const line = { topic, sequence: String(sequence), droppedCount: String(droppedCount), data: payload.toString("hex") };
        console.log(JSON.stringify(line));
      }
    } else {
      const tensors = await client.get(name);
      await writeFile(path, Buffer.concat(tensors.map((tensor) => tensor.payload)));
      for (const { record } of tensors) console.log(JSON.stringify(describe(record)));
    }
  } finally {
    client.close();
  }
}

main().catch((error: Error) => {
  console.error(error.message);
  process.exit(1);
});
