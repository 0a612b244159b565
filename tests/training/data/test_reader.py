import dataclasses
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import DataError
from retrieval.images import Preprocessing, center_crop_resize, open_image
from training.data.augmentation import Augmentation
from training.data.reader import PhotoReader, evaluation_batches, training_batches

from ...world import draw, encode
from ..conftest import tiny_settings

SIGHT = Preprocessing(size=32)


@pytest.fixture(scope="module")
def photos(catalogue: Path) -> list[Photo]:
    return read_catalogue(catalogue)


@pytest.fixture(scope="module")
def augment(catalogue: Path) -> Augmentation:
    return Augmentation(tiny_settings(catalogue, flip=True, colour=0.3))


def plan(count: int, *, batches: int = 5, size: int = 10) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, count, (batches, size)))


def made(reader: PhotoReader, augment: Augmentation, **options: object) -> list[np.ndarray]:
    batches = plan(20)
    return list(training_batches(reader, augment, batches, seed=(3, 1), **options))  # type: ignore[arg-type]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def use_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("training.data.reader.threads_of_share", lambda: threads)


def test_batches_are_the_same_whatever_the_threads_and_the_cache(
    photos: list[Photo], augment: Augmentation, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(monkeypatch, 1)
    expected = made(PhotoReader(photos, SIGHT, cache_bytes=0), augment)
    assert [len(pixels) for pixels in expected] == [len(batch) for batch in plan(20)]
    for threads in (2, 5):
        use_threads(monkeypatch, threads)
        assert same(expected, made(PhotoReader(photos, SIGHT, cache_bytes=0), augment))
    kept = PhotoReader(photos, SIGHT)
    small = PhotoReader(photos, SIGHT, cache_bytes=20_000)  # three photos
    for reader in (kept, small):
        for _ in range(2):
            assert same(expected, made(reader, augment))


@pytest.mark.parametrize("world", [2, 3, 12])
def test_processes_together_see_what_one_would(photos: list[Photo], augment: Augmentation, world: int) -> None:
    reader = PhotoReader(photos, SIGHT)
    whole = made(reader, augment)
    shares = [made(reader, augment, part=(rank, world)) for rank in range(world)]
    for number, pixels in enumerate(whole):
        assert np.array_equal(np.concatenate([share[number] for share in shares]), pixels)


def test_seed_batch_and_place_each_change_the_crop(photos: list[Photo], augment: Augmentation) -> None:
    reader = PhotoReader(photos, SIGHT)
    batches = [np.zeros(3, int), np.zeros(3, int)]
    one, other = (list(training_batches(reader, augment, batches, seed=(3, epoch))) for epoch in (0, 1))
    crops = [crop.tobytes() for pixels in (*one, *other) for crop in pixels]
    assert len(set(crops)) == 12


def test_evaluation_sees_what_serving_sees(photos: list[Photo], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.stack(
        [center_crop_resize(open_image(photo.path, min_side=SIGHT.min_side), SIGHT) for photo in photos[:11]]
    )
    for reader in (PhotoReader(photos, SIGHT, cache_bytes=0), PhotoReader(photos, SIGHT)):
        for threads in (1, 3):
            use_threads(monkeypatch, threads)
            blocks = list(evaluation_batches(reader, range(11), batch_size=5))
            assert [len(block) for block in blocks] == [5, 5, 1]
            assert np.array_equal(np.concatenate(blocks), expected)
    assert list(evaluation_batches(reader, range(0))) == []


def test_a_large_photo_is_reduced_for_training_alone(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 700, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    Image.fromarray(pixels).save(tmp_path / "large.jpg", quality=95)
    Image.fromarray(pixels).save(tmp_path / "boxed.png")
    photos = [Photo(name, tmp_path / name, "x") for name in ("large.png", "large.jpg")]
    photos.append(Photo("boxed.png", tmp_path / "boxed.png", "x", bbox=(10, 20, 310, 220)))
    exact = [center_crop_resize(open_image(photo.path, min_side=32), SIGHT) for photo in photos[:2]]
    exact.append(center_crop_resize(open_image(tmp_path / "boxed.png").crop((10, 20, 310, 220)), SIGHT))
    for first in ("training", "evaluation"):
        reader = PhotoReader(photos, SIGHT)
        if first == "training":
            assert [reader[i].shape for i in range(3)] == [(67, 117, 3), (100, 175, 3), (67, 100, 3)]
        assert np.array_equal(reader.pixels(range(3)), np.stack(exact))
        assert [reader[i].shape for i in range(3)] == [(67, 117, 3), (100, 175, 3), (67, 100, 3)]


def test_memory_is_kept_to(photos: list[Photo], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = Photo.read
    monkeypatch.setattr(Photo, "read", lambda photo: read.append(photo.photo_id) or plain(photo))
    side = open_image(photos[0].path).width
    reader = PhotoReader(photos, SIGHT, cache_bytes=2 * 3 * side * side)
    for _ in range(3):
        reader.pixels([0, 1, 2])
    assert [read.count(photo.photo_id) for photo in photos[:3]] == [1, 1, 3]


def test_an_error_arrives_and_the_threads_end(photos: list[Photo], augment: Augmentation, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    broken = [*photos[:3], dataclasses.replace(photos[3], path=tmp_path / "broken.png")]
    batches = [np.array([0, 1]), np.array([2, 3]), np.array([0, 1])]
    stream = training_batches(PhotoReader(broken, SIGHT), augment, batches, seed=(0,))
    assert len(next(stream)) == 2
    with pytest.raises(DataError, match=r"broken\.png"):
        next(stream)
    gone = PhotoReader([Photo("g", tmp_path / "gone.png", "x")], SIGHT)
    with pytest.raises(DataError, match=r"gone\.png"):
        gone.pixels([0])


def test_shards_and_files_give_the_same_batches(augment: Augmentation, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for number in range(20):
            data = encode(draw(number, 0))
            (tmp_path / f"{number:02d}.jpg").write_bytes(data)
            for name, text in ((f"{number:02d}.jpg", data), (f"{number:02d}.cls", b"x")):
                member = tarfile.TarInfo(name)
                member.size = len(text)
                shard.addfile(member, io.BytesIO(text))
    files = [Photo(str(number), tmp_path / f"{number:02d}.jpg", "x") for number in range(20)]
    shards = read_catalogue(tmp_path / "a.tar")
    assert same(made(PhotoReader(files, SIGHT), augment), made(PhotoReader(shards, SIGHT), augment))
