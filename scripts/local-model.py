"""Serves a model file in OpenAI's protocol on loopback, with llama.cpp: local-model.py FILE PORT. See local-model.sh."""

import pathlib
import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
# The name that the server reports; without it, the server reports `-`.
# The value is a set, because a string would become a set of its characters.
params.model_alias = {pathlib.Path(sys.argv[1]).stem}
params.port = int(sys.argv[2])
params.hostnames = ["127.0.0.1"]
params.n_ctx = 4096
params.n_parallel = 2
params.use_jinja = True
params.ui = False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2

server = xllamacpp.Server(params)
print("listening at", server.listening_address, flush=True)
signal.pause()
