"""TCA's bank, losses and training steps against the numbers of its release
(tests/golden/tca_golden.md)."""

import copy

import pytest
import torch
from torch import Tensor

from hapvr.losses.settings import ContrastSettings
from hapvr.model.family import video_vectors
from hapvr.model.tca import ContextNetwork
from hapvr.train.tca import MemoryBank, contrast_loss, follow
from tests.model.tca import release

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LOSSES = {
    "infonce": ContrastSettings(loss="infonce", temperature=0.07),
    "circle_released": ContrastSettings(circle_form="released"),
    "circle_paper": ContrastSettings(),
    "circle_released_g32": ContrastSettings(circle_form="released", margin=0.4, scale=32),
    "circle_paper_g32": ContrastSettings(margin=0.4, scale=32),
}
STEPS = range(3)


@pytest.fixture(scope="module")
def golden() -> release.Arrays:
    return release.read()


def close_gradient(found: Tensor, wanted: Tensor) -> None:
    """To a thousandth of the largest entry."""
    torch.testing.assert_close(
        found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()) + 2e-5
    )


def vectors_of(network: ContextNetwork, golden: release.Arrays, name: str, step: int) -> Tensor:
    """Video vectors [n, D] of the anchors, positives or negatives of a step."""
    frames, mask = release.frames_of(golden, f"batch/{name}")
    frames = frames[step].flatten(0, -3)
    mask = mask[step].flatten(0, -2)
    return video_vectors(network.encode(frames, mask), mask)


def bank_of(golden: release.Arrays) -> MemoryBank:
    bank = MemoryBank(golden["bank/initial"].shape[1], dims=golden["bank/initial"].shape[0])
    bank.vectors.copy_(golden["bank/initial"].T)
    return bank


def shown(vectors: Tensor) -> Tensor:
    return torch.full((len(vectors), 2), -1)


def test_bank_holds_the_last_steps(golden: release.Arrays) -> None:
    """Contents and pointer after each of three steps, the last of which begins anew at the
    front."""
    network = release.network_of(golden)
    bank = bank_of(golden)
    for step in STEPS:
        with torch.no_grad():
            negatives = vectors_of(network, golden, "negative", step)
        bank.add(negatives, shown(negatives))
        torch.testing.assert_close(bank.vectors.T, golden["bank/after"][step], **CLOSE)
        assert int(bank.pointer) == int(golden["bank/pointer"][step])


@pytest.mark.parametrize("run", LOSSES)
def test_losses_of_given_logits(golden: release.Arrays, run: str) -> None:
    """Value, and gradient by the logits as given: for InfoNCE they are already divided by the
    temperature."""
    for step in STEPS:
        logits = golden[f"{run}/logits"][step].clone().requires_grad_()
        settings = LOSSES[run].model_copy(update={"temperature": 1.0})
        loss = contrast_loss(settings, logits)
        loss.backward()
        torch.testing.assert_close(loss.detach(), golden[f"{run}/loss"][step], rtol=1e-4, atol=1e-4)
        close_gradient(logits.grad, golden[f"{run}/grad_logits"][step])


@pytest.mark.parametrize("run", LOSSES)
def test_steps_with_fixed_weights(golden: release.Arrays, run: str) -> None:
    """Logits against the bank before the step, loss, and gradients by frames, by video vectors and
    by weights."""
    network = release.network_of(golden).train()
    bank = bank_of(golden)
    for step in STEPS:
        frames, mask = release.frames_of(golden, "batch/anchor")
        anchors = frames[step].clone().requires_grad_()
        network.zero_grad()
        encoded = video_vectors(
            network.embed(anchors[:, :, None], mask=mask[step])[:, :, 0], mask[step]
        )
        encoded.retain_grad()
        with torch.no_grad():
            positives = vectors_of(network, golden, "positive", step)
            negatives = vectors_of(network, golden, "negative", step)

        torch.testing.assert_close(encoded, golden["bank/anchor_video"][step], **CLOSE)
        query = torch.nn.functional.normalize(encoded, dim=-1)
        similarity = torch.cat(
            [(query * positives).sum(1, keepdim=True), query @ bank.vectors.clone().T], dim=1
        )
        scale = 0.07 if run == "infonce" else 1.0
        torch.testing.assert_close(
            similarity / scale, golden[f"{run}/logits"][step], rtol=2e-4, atol=2e-5 / scale
        )
        loss = contrast_loss(LOSSES[run], similarity)
        loss.backward()
        bank.add(negatives, shown(negatives))
        torch.testing.assert_close(loss.detach(), golden[f"{run}/loss"][step], rtol=1e-3, atol=1e-3)
        close_gradient(anchors.grad, golden[f"{run}/grad_anchor"][step].transpose(1, 2))
        assert not anchors.grad[~mask[step]].any()
        close_gradient(encoded.grad, golden[f"{run}/grad_anchor_video"][step])

    for name, parameter in network.named_parameters():
        if f"{run}/grad_weight/{name}" in golden:
            close_gradient(parameter.grad, golden[f"{run}/grad_weight/{name}"])


@pytest.mark.parametrize(("run", "momentum"), [("train_m0", 0.0), ("train_m9", 0.9)])
def test_training_with_a_key_encoder(golden: release.Arrays, run: str, momentum: float) -> None:
    """Three steps of gradient descent: losses, bank, and both encoders at the end."""
    network = release.network_of(golden).train()
    bank = bank_of(golden)
    keys = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    settings = LOSSES["infonce"]
    for step in STEPS:
        follow(keys, network, momentum=momentum)
        anchors = vectors_of(network, golden, "anchor", step)
        with torch.no_grad():
            positives = vectors_of(keys, golden, "positive", step)
            negatives = vectors_of(keys, golden, "negative", step)

        similarity = torch.cat(
            [(anchors * positives).sum(1, keepdim=True), anchors @ bank.vectors.clone().T], dim=1
        )
        loss = contrast_loss(settings, similarity)
        bank.add(negatives, shown(negatives))
        torch.testing.assert_close(loss.detach(), golden[f"{run}/loss"][step], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            bank.vectors.T, golden[f"{run}/bank"][step], rtol=2e-4, atol=2e-4
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for encoder, name in ((network, "query_video_after"), (keys, "query_video_after_key_encoder")):
        frames, mask = release.frames_of(golden, "query")
        with torch.no_grad():
            query_vectors = video_vectors(encoder.encode(frames, mask), mask)
        torch.testing.assert_close(query_vectors, golden[f"{run}/{name}"], rtol=1e-3, atol=2e-4)
