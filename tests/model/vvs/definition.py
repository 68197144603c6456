"""VVS by its equations, a frame and a cell at a time, from the weights of a network; slow, and independent of its code."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.model.vvs.network import VvsNetwork


def similarity(first: Tensor, second: Tensor) -> Tensor:
    """[T, T'] of clips [T, R, D] and [T', R, D]: the mean over regions of the largest product."""
    rows = []
    for a in first:
        row = []
        for b in second:
            row.append(torch.stack([torch.stack([x @ y for y in b]).max() for x in a]).mean())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def topic_weights(network: VvsNetwork, regions: Tensor) -> Tensor:
    """[T] of regions [T, R, D]."""
    assert network.topic is not None
    means = [frame.mean(0) for frame in regions]
    video = sum(means[1:], means[0]) / len(means)
    video = video / video.norm()
    state = torch.stack([mean @ video / mean.norm() for mean in means])[None, None]
    layers, hidden = [], state
    for convolution in (network.topic.conv1, network.topic.conv2, network.topic.conv3):
        values = F.conv1d(F.pad(hidden, (1, 1)), convolution.weight, convolution.bias)
        layers.append(values)
        hidden = values.clamp(min=0)
    layers.append(F.conv1d(hidden, network.topic.last.weight, network.topic.last.bias))
    joined = F.conv1d(torch.cat(layers, 1), network.topic.join.weight, network.topic.join.bias)
    return 1 / (1 + torch.exp(-joined[0, 0] / network.topic.settings.temperature))


def saliency_weights(network: VvsNetwork, maps: Tensor, *, training: bool) -> Tensor:
    """[T] of a map of self-similarities [T, T], by torch's own layers; frames are sequences of length 1."""
    part = network.saliency
    assert part is not None

    def normalized(values: Tensor, layer: nn.BatchNorm2d) -> Tensor:
        if training:
            mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3), unbiased=False)
        else:
            assert layer.running_mean is not None
            assert layer.running_var is not None
            mean, variance = layer.running_mean, layer.running_var
        scaled = (values - mean[:, None, None]) / (variance[:, None, None] + layer.eps).sqrt()
        return scaled * layer.weight[:, None, None] + layer.bias[:, None, None]

    inputs = maps[None, None]
    hidden = normalized(F.conv2d(inputs, part.conv1.weight), part.bn1).clamp(min=0)
    rows = torch.cat([hidden[:, :, :1], hidden, hidden[:, :, -1:]], 2)
    padded = torch.cat([rows[..., :1], rows, rows[..., -1:]], 3)
    hidden = normalized(F.conv2d(padded, part.conv2.weight), part.bn2).clamp(min=0)
    hidden = normalized(F.conv2d(hidden, part.conv3.weight), part.bn3)
    hidden = (hidden + inputs).clamp(min=0)
    states = torch.stack([hidden[0, :, t, t] for t in range(len(maps))])
    dims = states.shape[1]
    layer = nn.TransformerEncoderLayer(dims, part.encoder.heads, 2 * dims, dropout=0.0).to(states.dtype)
    own = part.encoder.state_dict(keep_vars=True)
    renamed = {
        name.replace("self_attn.in_proj_", "input.").replace("self_attn.out_proj.", "output."): name
        for name in layer.state_dict()
    }
    weights = {theirs: own[name] for name, theirs in renamed.items()}
    outputs = torch.func.functional_call(layer, weights, (states[None],))[0]
    return torch.stack([1 / (1 + torch.exp(-output.mean() / part.temperature)) for output in outputs])


def frame_vectors(network: VvsNetwork, regions: Tensor, pooled: Tensor) -> Tensor:
    """The unit vector [D] of one video in evaluation."""
    assert network.distractor is not None
    confident = [
        float(torch.sigmoid(network.distractor(frame))) > network.settings.distractor.threshold for frame in pooled
    ]
    kept = [frame for frame, keep in zip(regions, confident, strict=True) if keep] or list(regions)
    while len(kept) < 4:
        kept = kept + kept
    clip = torch.stack(kept)
    weights = topic_weights(network, clip) * saliency_weights(network, similarity(clip, clip), training=False)
    total = sum((w * frame.mean(0) for w, frame in zip(weights, clip, strict=True)), torch.zeros_like(clip[0, 0]))
    return total / total.norm()


def losses(
    network: VvsNetwork, anchor: Tensor, pooled: Tensor, labels: Tensor, positive: Tensor, negative: Tensor
) -> dict[str, Tensor]:
    """The four losses of one triplet of clips [T, R, D]; labels: [T], 0 for distractors."""
    assert network.distractor is not None
    assert network.comparator is not None
    confidence = torch.stack([torch.sigmoid(network.distractor(frame)) for frame in pooled])
    anchor = torch.stack([c * frame for c, frame in zip(confidence, anchor, strict=True)])
    saliency = saliency_weights(network, similarity(anchor, anchor), training=True)

    def vector(clip: Tensor, weights: Tensor) -> Tensor:
        total = sum((w * frame.mean(0) for w, frame in zip(weights, clip, strict=True)), torch.zeros_like(clip[0, 0]))
        return total / total.norm()

    vectors = [vector(anchor, topic_weights(network, anchor) * saliency)]
    vectors += [vector(clip, topic_weights(network, clip)) for clip in (positive, negative)]
    maps = [refined(network, similarity(anchor, clip)) for clip in (positive, negative)]
    scores = [torch.stack([row.clamp(-1, 1).max() for row in m]).mean() for m in maps]
    beyond = sum(((m - 1).clamp(min=0) + (-1 - m).clamp(min=0)).sum() for m in maps)
    best = maps[0].detach().amax(1).tolist()
    threshold = sum(min(max(value, -1), 1) for value in best) / len(best)
    salient = [value > threshold or value == max(best) for value in best]
    targets = [float(salient[t * len(best) // len(anchor)]) for t in range(len(anchor))]

    def cross_entropy(values: Tensor, wanted: list[float]) -> Tensor:
        terms = [-torch.log(v) if y else -torch.log(1 - v) for v, y in zip(values, wanted, strict=True)]
        return torch.stack(terms).mean()

    zero = anchor.new_zeros(())
    return {
        "video": torch.maximum(zero, vectors[0] @ vectors[2] - vectors[0] @ vectors[1] + 0.5),
        "frame": torch.maximum(zero, scores[1] - scores[0] + 0.5) + 0.5 * beyond,
        "saliency": cross_entropy(saliency, targets),
        "distractor": cross_entropy(confidence, labels.tolist()),
    }


def refined(network: VvsNetwork, maps: Tensor) -> Tensor:
    """[T // 4, T' // 4] of maps [T, T']."""
    part = network.comparator
    assert part is not None
    hidden = maps[None, None]
    hidden = F.max_pool2d(F.conv2d(hidden, part.conv1.weight, part.conv1.bias, padding=1).clamp(min=0), 2)
    hidden = F.max_pool2d(F.conv2d(hidden, part.conv2.weight, part.conv2.bias, padding=1).clamp(min=0), 2)
    hidden = F.conv2d(hidden, part.conv3.weight, part.conv3.bias, padding=1).clamp(min=0)
    return F.conv2d(hidden, part.output.weight, part.output.bias)[0, 0]
