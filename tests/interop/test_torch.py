"""Compares our layers with those of torch and torchvision, if installed, with the same state dict."""

import jax
import numpy as np
import pytest

from jax_dcn import interop
from jax_dcn.linen import DeformConv

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")


class Layer(torch.nn.Module):
    """`conv2`, torchvision's layer, with its offset convolution in the place that each library uses."""

    def __init__(self, style, modulated):
        super().__init__()
        conv = torchvision.ops.DeformConv2d(4, 6, (3, 2), stride=2, padding=1, dilation=(1, 2), groups=2)
        outputs = (3 if modulated else 2) * 2 * 6
        self.offset = [torch.nn.Conv2d(4, outputs, (3, 2), stride=2, padding=1, dilation=(1, 2))]
        self.modulated = modulated
        self.conv2 = conv
        if style == "detectron2":
            self.conv2_offset = self.offset[0]
        elif style == "maskrcnn_benchmark":
            self.conv2 = torch.nn.Module()
            self.conv2.conv, self.conv2.offset = conv, self.offset[0]
        else:
            setattr(conv, {"mmcv": "conv_offset", "dcnv2": "conv_offset_mask"}[style], self.offset[0])
        self.run = [conv]

    def forward(self, x):
        raw = self.offset[0](x)
        if not self.modulated:
            return self.run[0](x, raw)
        first, second, logits = raw.chunk(3, dim=1)  # as these libraries write it
        return self.run[0](x, torch.cat([first, second], dim=1), logits.sigmoid())


@pytest.mark.parametrize("modulated", [True, False])
@pytest.mark.parametrize("style", ["mmcv", "detectron2", "dcnv2", "maskrcnn_benchmark"])
def test_values_and_gradients(style, modulated):
    torch.manual_seed(0)
    theirs = Layer(style, modulated)
    x = np.random.default_rng(0).normal(size=(2, 9, 10, 4)).astype(np.float32)
    y = theirs(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    y.square().sum().backward()

    settings = dict(strides=2, padding=1, kernel_dilation=(1, 2), feature_group_count=2, offset_groups=2)
    layer = DeformConv(6, (3, 2), modulated=modulated, **settings)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), x)
    variables = interop.from_torch(theirs.state_dict(), shapes, module="conv2")
    ours, pullback = jax.vjp(lambda variables: layer.apply(variables, x), variables)
    np.testing.assert_allclose(ours, y.detach().numpy().transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-5)

    (gradients,) = pullback(2 * ours)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, gradient in interop.to_torch(gradients, style=style, module="conv2").items():
        np.testing.assert_allclose(gradient, expected.pop(name).numpy(), rtol=1e-3, atol=1e-3)
    assert not expected

    doubled = jax.tree.map(lambda leaf: 2 * leaf, variables)
    state = interop.to_torch(doubled, style=style, module="conv2")
    theirs.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state.items()})
    y = theirs(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).detach().numpy()
    np.testing.assert_allclose(layer.apply(doubled, x), y.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-5)
