"""Benchmarks: each prints its tables and writes them to `research/results`.

Run one with `python -m research.benchmarks.NAME`.

What a threshold and a loss are worth on real photos:
grocery          base losses without and with TCM, fine-tuned by the protocol of the grocery photos
paper_claims     the papers' main claims, with linear `heads` on features of the frozen backbone
rotations        one threshold on items nobody trained on, four rotations of the families; `rotation_tables`
promise          how often a certified threshold keeps its FPIR on fresh items of simulated catalogues
decisions        whether a decision depends on the program, the batch or the threads
trainers         the same training with pytorch-metric-learning and OML

Time and memory:
losses step      each loss alone; what a loss adds to a training step
pipeline         reading and augmenting photos during training
large_batch      steps of thousands of photos by cached gradients
consistency      OPIS of many pairs
precision        int8 and fp16 models beside fp32
gallery          a gallery of a million photos and its index kinds
indexing         `retrieval index` beside a bare loop
endpoint         latency and throughput over HTTP; `load`, `stress`, `peers`, `litserve_peer`

tables           prints a table and keeps it; page_screenshot takes the picture of the README
"""
