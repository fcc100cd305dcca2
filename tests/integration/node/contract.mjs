// A client in another language, built from the .proto files alone. Reads {"protos": folder, "files": [...], "messages":
// {method path: {"request": [base64, ...], "response": [base64, ...]}}} on standard input, decodes and encodes every
// message with what @grpc/proto-loader made of the files, and writes {"methods": {path: [requestStream, responseStream]},
// "messages": the same messages}.
import { readFileSync } from "node:fs";
import { loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const input = JSON.parse(readFileSync(0, "utf8"));
const definition = loadSync(input.files, { includeDirs: [input.protos], longs: String, keepCase: true });
const stubs = Object.values(loadPackageDefinition(definition).dbw.v1).filter((stub) => stub.service);

const again = (encoded, decode, encode) => encoded.map((m) => encode(decode(Buffer.from(m, "base64"))).toString("base64"));
const output = { methods: {}, messages: {} };
for (const method of stubs.flatMap((stub) => Object.values(stub.service))) {
  const { request, response } = input.messages[method.path];
  output.methods[method.path] = [method.requestStream, method.responseStream];
  output.messages[method.path] = {
    request: again(request, method.requestDeserialize, method.requestSerialize),
    response: again(response, method.responseDeserialize, method.responseSerialize),
  };
}
console.log(JSON.stringify(output));
