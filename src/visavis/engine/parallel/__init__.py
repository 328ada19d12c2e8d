"""Tensor parallelism: one model over several processes, one for each GPU (or, for tests and machines with several
memories, on the CPU).

Rank 0 is the engine as ever: requests, scheduler, prefix cache, vision cache, sampling. The other ranks are processes
of its own (`group`, `worker`) that know no request. What they do comes as one small message a step over a pipe
(`device_step.Decodes`, `Mixed`, …: token ids, positions, slots, block tables); what is large goes through collectives
(NCCL, or gloo on a CPU), never through the pipe.

How a model is divided (`sharding`):

- heads and the inner columns of MLPs: queries, keys, values, gates and ups by rows, so each rank computes its heads;
  output and down by columns, after which the ranks' parts are summed: two all-reduces a layer. With more ranks than
  key-value heads these are repeated. Rank 0 alone adds residual and bias to its part, so the sum is the next residual.
- the head by rows of the vocabulary: the logits are gathered for rank 0, which samples.
- the embedding, norms and position tables are whole everywhere. A sharded embedding would cost one more all-reduce at
  the start of every step to save 1/N of what is 3 to 8 % of a model; a tied head is a view of its rows.
- the vision tower like the decoder, where its heads divide, else on rank 0 alone. Patches are broadcast, and every
  rank has the outputs; rank 0 keeps them, and broadcasts those that a step needs. So no other rank has a cache to keep
  in step.

Decoding ahead (`kernels/cuda/ahead.py`): every rank captures the same graphs in the same order, collectives included.
Rank 0 samples and broadcasts the tokens on the device, at the end of the graph. The alternative, all ranks drawing
alike from gathered logits, would save that one small broadcast and need every request's sampling state everywhere and
bit-equal logits for ever after.

Memory: every rank counts the KV blocks it has room for, and the smallest count holds. Before a step with prompts every
rank reserves what it will take; where one cannot, nobody begins, and the scheduler makes the step smaller. Memory that
runs out in the middle of a step ends the engine, with an error that says so.

Ends: a rank that dies, or is silent for `TIMEOUT_S`, ends the group: the others are killed, NCCL's waiting kernels are
aborted, and the step raises one BackendError. A worker whose engine is gone sees its pipe close, and ends itself.
"""
