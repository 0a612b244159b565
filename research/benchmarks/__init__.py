"""Benchmarks: each prints its tables and writes them to `research/results`.

Run one with `python -m research.benchmarks.NAME`, and with `make bench` all without a record of the commit checked out.

Effect of losses and thresholds on real photos:
grocery          base losses without and with TCM, fine-tuned with the grocery protocol
paper_claims     the papers' main claims on grocery, with linear `heads` on features of the frozen backbone
many_classes     the same claims with 98 to 1,000 training classes (`research.claims`)
rotations        one threshold for unseen items, in four rotations of the families; `rotation_tables`
pretrained       ranking and thresholds of pretrained models without training
pair             two pretrained models as one, beside each alone
head_start       a trained head in galleries of items that it was fitted to and of others, beside the pretrained model
el_nivmf         EL-nivMF alone, and with ProxyAnchor on the same proxies and on others, beside ProxyAnchor
library_heads    heads trained by pytorch-metric-learning from the same start; `heads`
open_set         the open-set loss beside TCM and Smooth-AP, on items that the heads were not fitted to
cross_fitting    thresholds of models that were trained on the catalogue itself, from the draws of fold models
item_distance    the item distance against the nearest photo, and one threshold for all; `item_distance_data`
verification     geometric verification on covers and on the rotations of grocery; `verification_data`
promise          what the thresholds of galleries realise: by size, with labelled photos, while they grow; `anchoring`
promise_vectors  what promises for vectors that lie elsewhere realise: short lists, growth, filters, the usual ways
framing          second looks at photos in which a thing is small, and eleven other changes of a photo; `framing_views`
operating_point  what estimated points of galleries realise, and certified ones: matches and questions
sides            what a gallery tells of itself beside what it does: names and questions, for known and unknown things
two_photos       two photos of a thing as one query, by their mean and by the better of the single searches
demo             thresholds of `retrieval demo` for several seeds
first_hour       what the commands of the tutorial print

Time and memory:
losses step      each loss alone; the cost of a loss within a training step
gallery          a gallery of a million photos and its index kinds
milvus           a gallery on a real Milvus server: requests and times by size
indexing         `retrieval index` compared with a bare loop
endpoint         latency and throughput over HTTP; `load`, `peers`
start            start of a server with 100,000 photos, to its first answer and its page

`suite` runs them all, `devices` selects a GPU or the CPU; `tables` prints and stores tables.
"""
