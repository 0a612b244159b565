"""Benchmarks: each prints its tables and writes them to `research/results`.

Run one with `python -m research.benchmarks.NAME`.

Effect of losses and thresholds on real photos:
grocery          base losses without and with TCM, fine-tuned with the grocery protocol
paper_claims     the papers' main claims on grocery, with linear `heads` on features of the frozen backbone
many_classes     the same claims with 98 to 1,000 training classes (`research.claims`)
rotations        one threshold for unseen items, in four rotations of the families; `rotation_tables`
anchoring        FPIR that thresholds set in a gallery realise on items that are not in it, with frozen features
anchored_training  the same with fine-tuned models (`anchored_models`), in the galleries of `anchored_galleries`
compatible       new queries in the gallery of an earlier model, with backward-compatible training
growth           FPIR that a threshold realises in a growing gallery if it is only tightened
pretrained       ranking and thresholds of pretrained models without training
verification     geometric verification on covers and on the rotations of grocery; `verification_data`
verification_anchoring  FPIR that thresholds set in a gallery of covers realise, with verification
verification_photos  verified queries of one to three photos of a cover, in a gallery
verification_cost  time of its searches, disk and memory of a photo
several_photos   queries of several photos, item scores, views and re-ranking; `photo_searches`, `photo_views`
several_photos_promise  FPIR that thresholds for queries of several photos realise
regions          items found in composed photos of 1 to 4 items, and FPIR per photo; `region_scenes`
misses           causes of the searches that miss, with two distances
coverage         how often a certified threshold of a gallery keeps its FPIR, in worlds fitted to real features;
                 `coverage_worlds`, `coverage_searches`, `coverage_bounds`
promise          how often a certified threshold keeps its FPIR on new items of simulated catalogues
decisions        agreement of decisions between programs, batch sizes and thread counts
recipes          heads on a pretrained backbone, and how their checkpoint is selected; `recipe_selection`
fine_tuning      the last blocks of a pretrained backbone compared with a head on its features
trainers         the same training with pytorch-metric-learning and OML
head_trainers    the same for heads on a pretrained backbone, with their time; `head_trainer_tables`
impostors        what limits TPIR: unknown items that are taken for others, and the spread of distances

Time and memory:
losses step      each loss alone; the cost of a loss within a training step
trainer_step     fine-tuning steps compared with a bare torch loop
pipeline         reading and augmenting photos during training
large_batch      steps of thousands of photos with a gradient cache
consistency      OPIS of many pairs
precision        int8 and fp16 models compared with fp32
precision_auto   the form that `retrieval export --precision auto` chooses, and those that it tries
anchoring_cost   thresholds set in a gallery: setting them, changes of photos and searches
feature_kills    indexing with local features, killed at random moments
sync_kills       synchronization killed at random moments and run again; `sync_catalogue`
demo             thresholds of `retrieval demo` for several seeds
gallery          a gallery of a million photos and its index kinds
sync             a table of 100,000 photos compared with its gallery, and changes of it
decoding         photos to pixels, compared with other `decoders`; `photo_sizes`
indexing         `retrieval index` compared with a bare loop, in threads and `processes`
bulk_search      `retrieval search` with many photos compared with indexing them
endpoint         latency and throughput over HTTP; `load`, `stress`, `peers`, `litserve_peer`
start            start of a server with 100,000 photos, to its first answer and its page
workers          several processes that serve, compared with searches in as many processes

`gpu` runs the benchmarks of time on a GPU (`make bench-gpu`); `devices` selects one.
`tables` prints and stores tables; page_screenshot takes the screenshot for the README.
"""
