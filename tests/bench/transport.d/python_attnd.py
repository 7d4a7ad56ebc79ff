"""The Python client of attnd under load. Usage: python_attnd.py TARGET"""

import sys

import attnd
import numpy as np
from load import serve


def main():
    with attnd.Client(sys.argv[1]) as client:

        def prepare(*tensors):
            q, k, v = (np.frombuffer(one, np.float32).reshape(1, 1, 1, -1) for one in tensors)

            def call():
                reply = client.forward(q, k, v, method="softmax")
                return lambda: reply.out.tobytes()

            return call

        serve(prepare)


if __name__ == "__main__":
    main()
