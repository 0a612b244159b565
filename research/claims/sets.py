"""The labelled sets: cars and birds as features of a frozen backbone, drawn symbols as pixels, a drawn catalogue.

Shapes: V views, n photos, w = width of a feature.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, count, islice, pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from training.backbones import backbone_preprocessing, load_backbone
from training.config import LITE0, Settings
from training.data.augmentation import Augmentation
from training.data.reader import PhotoReader, evaluation_batches
from training.data.samplers import ItemSampler
from training.data.synthetic.catalogue import make_catalogue
from training.evaluation.embedding import to_device
from training.evaluation.evaluate import item_labels
from training.loop.optimizer import learning_rate_factor
from training.losses.registry import make_loss

from .symbols import Drawings, draw_symbols

WHOLE = "symbols, whole network"
NAMES = ("symbols", "cars", "birds", "catalogue", WHOLE)
VIEWS, DIM, WIDTH = 3, 128, 256
TRAINED, VALIDATED, TESTED, EARLIER, DRAWINGS = 1000, 100, 200, 400, 8  # symbols, and drawings of each
ITEMS, PHOTOS = 2000, 4  # of the drawn catalogue
BLOCK = 64
# Chosen by R@1 of the validation classes, except for the whole network, whose number limits the time.
SYMBOL_STEPS, WHOLE_STEPS, CATALOGUE_STEPS, PHOTO_STEPS = 1000, 500, 1000, 160


@dataclass(frozen=True)
class Held:
    """Photos of classes that are not trained on: inputs (n, …), classes (n,), and gallery flags (n,)."""

    inputs: Tensor
    labels: np.ndarray
    in_gallery: np.ndarray


@dataclass(frozen=True)
class LabelledSet:
    """Training views (V, n, …) with classes (n,) 0 … C-1, validation and test classes, and how to train."""

    name: str
    views: Tensor
    labels: np.ndarray
    validation: Held
    test: Held
    make_model: Callable[[], nn.Module]
    steps: int
    dim: int = DIM

    @property
    def epoch(self) -> float:
        """Number of steps in which as many photos are drawn as there are."""
        return len(self.labels) / BLOCK


def load_set(name: str, data: Path, output: Path) -> LabelledSet:
    """Return a set of a name; features and drawings are kept under `output`."""
    if name in ("symbols", WHOLE):
        return _symbols(output, whole=name == WHOLE)
    if name == "catalogue":
        path = output / "catalogue" / "catalogue.csv"
        if not path.exists():
            make_catalogue(path.parent, items=ITEMS, photos=PHOTOS, seed=19)
        return _photographed(name, path, output, size=96, views=2, steps=CATALOGUE_STEPS)
    return _photographed(name, data / "data" / name / f"{name}.csv", output, size=160, views=VIEWS, steps=PHOTO_STEPS)


def _symbols(output: Path, *, whole: bool) -> LabelledSet:
    """Return the drawn symbols: as pixels for the whole network, or as features of its first layers for a head."""
    drawn = _drawings(output / "symbols.npz")
    pixels = torch.from_numpy(drawn.pixels)[:, None]
    ends = np.cumsum((0, TRAINED, VALIDATED, TESTED, EARLIER))
    parts = [(drawn.labels >= low) & (drawn.labels < high) for low, high in pairwise(ends)]
    path = output / "symbol-network.safetensors"
    if not path.exists():
        save_file(pretrained(pixels[torch.from_numpy(parts[3])], drawn.labels[parts[3]] - ends[3]).state_dict(), path)
    weights = {name: value for name, value in load_file(path).items() if not name.startswith("head")}

    def make() -> nn.Module:
        model = symbol_network()
        model.load_state_dict(model.state_dict() | weights)
        return model

    inputs = pixels if whole else _symbol_features(make(), pixels, parts[0])
    first = np.arange(len(drawn.labels)) % DRAWINGS < DRAWINGS // 2
    validation, test = (Held(inputs[torch.from_numpy(part)], drawn.labels[part], first[part]) for part in parts[1:3])
    views = inputs[torch.from_numpy(parts[0])][None]
    labels, head = drawn.labels[parts[0]], partial(nn.Linear, inputs.shape[1], DIM)
    if whole:
        return LabelledSet(WHOLE, views, labels, validation, test, make, steps=WHOLE_STEPS)
    return LabelledSet("symbols", views, labels, validation, test, head, steps=SYMBOL_STEPS)


@torch.no_grad()
def _symbol_features(network: nn.Module, pixels: Tensor, trained: np.ndarray) -> Tensor:
    """Return what the last layer reads (n, w), centred and scaled by the training drawings."""
    first = nn.Sequential(*list(network.eval().children())[:-1])
    features = torch.cat([first(block) for block in torch.split(pixels, 512)])
    return Components.of(features[torch.from_numpy(trained)]).apply(features)


@dataclass(frozen=True)
class Components:
    """Principal components of training features; a head on WIDTH of them trains much faster."""

    mean: Tensor
    matrix: Tensor  # (w, WIDTH), scaled so that components have a mean variance of 1

    @classmethod
    def of(cls, features: Tensor) -> Components:
        """Return the components of features (n, w)."""
        mean = features.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov(features.T))
        return cls(mean, vectors[:, -WIDTH:] / values[-WIDTH:].mean().sqrt())

    def apply(self, features: Tensor) -> Tensor:
        """Return the components (…, WIDTH) of features (…, w)."""
        return (features - self.mean) @ self.matrix


def _drawings(path: Path) -> Drawings:
    """Return the drawings of all symbols, kept in a file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = draw_symbols(TRAINED + VALIDATED + TESTED + EARLIER, DRAWINGS)
        np.savez_compressed(path, pixels=(255 * drawn.pixels).round().astype(np.uint8), labels=drawn.labels)
    with np.load(path, allow_pickle=False) as file:
        return Drawings(file["pixels"].astype(np.float32) / np.float32(255), file["labels"])


def symbol_network() -> nn.Module:
    """Return a small convolutional network for drawings (n, 1, 28, 28); its last layer is `head`."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs, kernel, stride) in enumerate(((1, 32, 4, 4), (32, 64, 3, 2))):
        padding = kernel // 2 if kernel % 2 else 0
        layers[f"convolution{number}"] = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        layers[f"norm{number}"], layers[f"relu{number}"] = nn.BatchNorm2d(outputs), nn.ReLU()
    return nn.Sequential(layers | {"flat": nn.Flatten(), "head": nn.Linear(64 * 4 * 4, DIM)})


def pretrained(pixels: Tensor, labels: np.ndarray, *, steps: int = 1500) -> nn.Module:
    """Return a network trained with Smooth-AP on other symbols: the papers too start from trained weights."""
    torch.manual_seed(0)
    model, loss = symbol_network(), make_loss("smooth_ap", classes=1, dim=DIM, arguments={"temperature": 0.03})
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    sampler = ItemSampler(labels.tolist(), items_per_batch=BLOCK // 4, photos_per_item=4, seed=0)
    batches = chain.from_iterable(sampler.epoch(epoch) for epoch in count())
    for step, batch in enumerate(islice(batches, steps)):
        value = loss(model(pixels[torch.from_numpy(batch)]), torch.from_numpy(labels[batch]))
        optimizer.zero_grad()
        value.backward()
        optimizer.param_groups[0]["lr"] = 2e-3 * learning_rate_factor(step, steps)
        optimizer.step()
    return model


def halved(photos: Sequence[Photo]) -> list[Photo]:
    """Return photos of which every second one is a query and the others are for the gallery, if they have no role."""
    return [replace(photo, role=photo.role or ("gallery", "query")[row % 2]) for row, photo in enumerate(photos)]


def _photographed(name: str, path: Path, output: Path, *, size: int, views: int, steps: int) -> LabelledSet:
    photos = halved(read_catalogue(path))
    parts = {part: np.array([photo.partition == part for photo in photos]) for part in _PARTS}
    raw_views, raw_plain = _features(photos, parts["train"], output / f"{name}.npz", size=size, views=views)
    components = Components.of(raw_views.flatten(0, 1))
    plain, labels = components.apply(raw_plain), item_labels(photos)
    shown = np.array([photo.role == "gallery" for photo in photos])
    validation, test = (
        Held(plain[torch.from_numpy(parts[part])], labels[parts[part]], shown[parts[part]]) for part in _PARTS[1:]
    )
    fit = np.unique(labels[parts["train"]], return_inverse=True)[1].astype(np.int64)
    make = partial(nn.Linear, plain.shape[1], DIM)
    return LabelledSet(name, components.apply(raw_views), fit, validation, test, make, steps=steps)


_PARTS = ("train", "calibration", "test")


@torch.inference_mode()
def _features(
    photos: Sequence[Photo], trained: np.ndarray, path: Path, *, size: int, views: int
) -> tuple[Tensor, Tensor]:
    """Return the features of the training photos (V, n, w), one view plain, the others augmented; and of all (m, w).

    They are computed once; the views that are done are kept, so that an interrupted computation continues.
    """
    settings = Settings(catalogue="", backbone=LITE0, size=size)

    @cache
    def network() -> Callable[[np.ndarray], np.ndarray]:
        backbone, _ = load_backbone(LITE0)
        backbone.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return lambda block: backbone(to_device(block, sight, torch.device("cpu"))).mean(dim=(2, 3)).numpy()

    def kept(part: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        file = path.with_name(f"{path.stem}-{part}.npy")
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(".partial.npy")
            np.save(aside, compute())
            aside.replace(file)
        return np.asarray(np.load(file, allow_pickle=False))

    sight = backbone_preprocessing(LITE0, size=size, crop_ratio=settings.crop_ratio)
    fit = [photo for photo, flag in zip(photos, trained, strict=True) if flag]
    reader, augment = PhotoReader(fit, sight, cache_bytes=0), Augmentation(settings)

    def augmented(view: int) -> np.ndarray:
        generator = np.random.default_rng((0, view))
        blocks = np.split(np.arange(len(fit)), range(BLOCK, len(fit), BLOCK))
        crops = (np.stack([augment(reader[int(i)], generator) for i in block]) for block in blocks)
        return np.concatenate([network()(block) for block in tqdm(crops, f"view {view}", total=len(blocks))])

    def everyone() -> np.ndarray:
        blocks = evaluation_batches(PhotoReader(photos, sight, cache_bytes=0), range(len(photos)))
        return np.concatenate([network()(block) for block in tqdm(blocks, "all photos", total=len(photos) // BLOCK)])

    plain = kept("plain", everyone)
    others = [kept(f"view-{view}", partial(augmented, view)) for view in range(1, views)]
    return torch.from_numpy(np.stack([plain[trained], *others])), torch.from_numpy(plain)
