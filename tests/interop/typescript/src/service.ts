// A client of the tensor service: grpc-js carries bytes, the generated schemas say what they mean.

import { randomBytes } from "node:crypto";
import * as grpc from "@grpc/grpc-js";
import { create, fromBinary, toBinary, type DescMethod, type MessageInitShape } from "@bufbuild/protobuf";
import { DLTensorSchema } from "./gen/dlpack_wire/v1/dlpack_pb.js";
import { type TensorRecord } from "./gen/dlpack_wire/v1/tensor_file_pb.js";
import {
  DeliveryPolicy,
  PublishRequestSchema,
  PutRequestSchema,
  TensorService,
  type Frame,
  type GetResponse,
  type GetServerInfoResponse,
  type PublishResponse,
  type PutResponse,
  type SubscribeResponse,
} from "./gen/dlpack_wire/v1/tensor_service_pb.js";
import { blockSums, checkChunk } from "./xxh3.js";

const CHUNK_BYTES = 1 << 20; // one block

function definition(method: DescMethod): grpc.MethodDefinition<any, any> {
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming",
    responseStream: method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming",
    requestSerialize: (message) => Buffer.from(toBinary(method.input, message)),
    requestDeserialize: (bytes) => fromBinary(method.input, bytes),
    responseSerialize: (message) => Buffer.from(toBinary(method.output, message)),
    responseDeserialize: (bytes) => fromBinary(method.output, bytes),
  };
}

export interface Tensor {
  record: TensorRecord;
  payload: Buffer;
}

export class Client {
  private readonly stub: grpc.Client & Record<string, any>;

  constructor(address: string) {
    const methods = Object.fromEntries(TensorService.methods.map((m) => [m.localName, definition(m)]));
    const Stub = grpc.makeGenericClientConstructor(methods, TensorService.typeName);
    this.stub = new Stub(address, grpc.credentials.createInsecure());
  }

  close(): void {
    this.stub.close();
  }

  serverInfo(): Promise<GetServerInfoResponse> {
    return new Promise((resolve, reject) => {
      this.stub["getServerInfo"]!(
        create(TensorService.method.getServerInfo.input),
        (error: grpc.ServiceError | null, response: GetServerInfoResponse) =>
          error === null ? resolve(response) : reject(error),
      );
    });
  }

  /** Puts tensors as one object and returns the generation that it got. */
  put(name: string, records: TensorRecord[]): Promise<bigint> {
    return new Promise((resolve, reject) => {
      const call: grpc.ClientWritableStream<any> = this.stub["put"]!(
        (error: grpc.ServiceError | null, response: PutResponse) =>
          error === null ? resolve(response.generation) : reject(error),
      );
      call.on("error", () => {}); // reported through the callback
      const send = (message: MessageInitShape<typeof PutRequestSchema>): Promise<void> =>
        new Promise((sent) => (call.write(create(PutRequestSchema, message)) ? sent() : call.once("drain", () => sent())));
      const stream = async (): Promise<void> => {
        const tensors = records.map((record) => record.tensor ?? create(DLTensorSchema));
        const payloadBytes = tensors.reduce((sum, tensor) => sum + tensor.data.length, 0);
        await send({
          start: {
            name,
            uploadId: randomBytes(16),
            recordCount: BigInt(records.length),
            payloadBytes: BigInt(payloadBytes),
          },
          records: records.map((record, i) => ({
            ...record,
            headerXxh364: 0n,
            tensor: { ...tensors[i]!, data: new Uint8Array(), padding: new Uint8Array() },
          })),
        });
        for (const [tensorIndex, tensor] of tensors.entries()) {
          for (let offset = 0; offset < tensor.data.length; offset += CHUNK_BYTES) {
            const data = tensor.data.subarray(offset, offset + CHUNK_BYTES);
            await send({ chunk: { tensorIndex, offset: BigInt(offset), blockSums: await blockSums(data), data } });
          }
        }
        await send({ finish: true });
        call.end();
      };
      stream().catch((error) => {
        call.cancel();
        reject(error);
      });
    });
  }

  /** Publishes tensors as frames of one topic, and returns the sequence of the last one. */
  async publish(topic: string, records: TensorRecord[]): Promise<bigint> {
    const call: grpc.ClientDuplexStream<any, PublishResponse> = this.stub["publish"]!();
    const answers = call[Symbol.asyncIterator]();
    let sequence = 0n;
    for (const { tensor } of records) {
      const { data, ...header } = tensor ?? create(DLTensorSchema);
      const frame = { topic, header: { ...header, data: new Uint8Array(), padding: new Uint8Array() } };
      call.write(create(PublishRequestSchema, { frame }));
      for (let offset = 0; offset < data.length; offset += CHUNK_BYTES) {
        const piece = data.subarray(offset, offset + CHUNK_BYTES);
        const chunk = { offset: BigInt(offset), blockSums: await blockSums(piece), data: piece };
        call.write(create(PublishRequestSchema, { chunk }));
      }
      sequence = ((await answers.next()).value as PublishResponse).lastSequence;
    }
    call.end();
    return sequence;
  }

  /** Receives so many frames of topics, every chunk checked as it comes. */
  async subscribe(pattern: string, count: number, ready: () => void): Promise<{ frame: Frame; payload: Buffer }[]> {
    const request = { patterns: [pattern], policy: DeliveryPolicy.RELIABLE };
    const call = this.stub["subscribe"]!(create(TensorService.method.subscribe.input, request));
    const frames: { frame: Frame; payload: Buffer }[] = [];
    for await (const message of call as AsyncIterable<SubscribeResponse>) {
      if (message.start !== undefined) ready();
      if (message.frame !== undefined) {
        frames.push({ frame: message.frame, payload: Buffer.alloc(0) });
      }
      const last = frames.at(-1);
      if (last === undefined) continue;
      if (message.chunk !== undefined) {
        const { offset, data, blockSums } = message.chunk;
        if (offset !== BigInt(last.payload.length)) throw new Error(`chunk at ${offset}, expected ${last.payload.length}`);
        await checkChunk(`frame ${last.frame.sequence}`, blockSums, data);
        last.payload = Buffer.concat([last.payload, data]);
      }
      const { shape, dtype } = last.frame.header!;
      const size = (shape.reduce((product, extent) => product * extent, 1n) * BigInt(dtype!.bits)) / 8n;
      if (frames.length === count && BigInt(last.payload.length) === size) break;
    }
    call.cancel();
    return frames;
  }

  /** Gets all tensors of an object, every chunk checked as it comes. */
  async get(name: string): Promise<Tensor[]> {
    const call: AsyncIterable<GetResponse> = this.stub["get"]!(create(TensorService.method.get.input, { name }));
    const tensors: { record: TensorRecord; pieces: Buffer[]; size: number }[] = [];
    for await (const message of call) {
      for (const record of message.records) {
        tensors.push({ record, pieces: [], size: 0 });
      }
      const chunk = message.chunk;
      if (chunk === undefined) continue;
      const tensor = tensors[chunk.tensorIndex];
      if (tensor === undefined) throw new Error(`chunk of tensor ${chunk.tensorIndex}, which was not announced`);
      if (chunk.offset !== BigInt(tensor.size)) throw new Error(`chunk at ${chunk.offset}, expected ${tensor.size}`);
      await checkChunk(`tensor ${chunk.tensorIndex}`, chunk.blockSums, chunk.data);
      tensor.pieces.push(Buffer.from(chunk.data));
      tensor.size += chunk.data.length;
    }
    return tensors.map(({ record, pieces }) => ({ record, payload: Buffer.concat(pieces) }));
  }
}
