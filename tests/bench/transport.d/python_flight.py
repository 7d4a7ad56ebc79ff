"""Arrow Flight's DoExchange with the bytes of a Forward: q, k, v as one record batch, out back.

One stream lives as long as the client, which spares Flight the start of a call on each request.
Usage: python_flight.py server | python_flight.py load TARGET
"""

import sys

import pyarrow as pa
from load import serve
from pyarrow import flight

REQUEST = pa.schema([(name, pa.uint8()) for name in ("q", "k", "v")])
REPLY = pa.schema([("out", pa.uint8())])


class EchoServer(flight.FlightServerBase):
    def do_exchange(self, _context, _descriptor, reader, writer):
        writer.begin(REPLY)
        for chunk in reader:
            writer.write_batch(pa.RecordBatch.from_arrays([chunk.data.column(0)], schema=REPLY))


def run_server():
    server = EchoServer("grpc://127.0.0.1:0")
    print(server.port, flush=True)
    sys.stdin.read()
    server.shutdown()


def run_load(target):
    client = flight.FlightClient(f"grpc://{target}")
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"forward"))
    writer.begin(REQUEST)

    def prepare(*tensors):
        arrays = [pa.Array.from_buffers(pa.uint8(), len(one), [None, pa.py_buffer(one)])
                  for one in tensors]
        batch = pa.RecordBatch.from_arrays(arrays, schema=REQUEST)

        def call():
            writer.write_batch(batch)
            out = reader.read_chunk().data.column(0)
            return lambda: out.buffers()[1].to_pybytes()[out.offset : out.offset + len(out)]

        return call

    serve(prepare)


if __name__ == "__main__":
    run_server() if sys.argv[1] == "server" else run_load(sys.argv[2])
