"""Tandem's models, implemented with PyTorch.

Each reads its sizes from a case of model_parity.c. `our_name` returns Tandem's name of a tensor of the model,
`from_ours` and `to_ours` convert the numbers of a tensor to PyTorch's layout and back: Tandem's images are [B,
H, W, C] and its kernels [O, KH, KW, C], PyTorch has C before H and W. The layer whose input is a flattened image
therefore has its numbers in another order.
"""
import torch
from torch import nn
from torch.nn import functional


class Kinks:
    """A rectifier that records where it is undecided. A number that is zero except for rounding may count as
    positive in one program and as negative in another: both are correct, their outputs are the same, but the
    gradients differ by everything that passes through that number. Among the million numbers that a step of
    ResNet-18 rectifies there is often one; PyTorch's single precision then differs by a thousandth and more from
    its own double precision. This rectifier records the numbers nearer to zero than NEAR times their tensor's
    size, and uses the other side for those in `turned`, each identified by the rectifier's call and its index in
    that tensor."""

    NEAR = 3e-6

    def __init__(self, turned=()):
        self.turned, self.calls, self.near, self.count = turned, 0, [], 0

    def __call__(self, x):
        flat = x.detach().flatten()
        distance = flat.abs() / flat.square().mean().sqrt()
        self.near += [(float(distance[place]), self.calls, int(place))
                      for place in (distance < self.NEAR).nonzero()]
        passes = flat > 0
        for call, place in self.turned:
            if call == self.calls:
                passes[place] = ~passes[place]
        self.calls += 1
        self.count += len(flat)
        return x * passes.reshape(x.shape)


class Model(nn.Module):
    """Names and layouts are the same on both sides, unless a model says otherwise."""

    rectifier = staticmethod(functional.relu)  # Kinks may take its place

    def our_name(self, name):
        return name

    def from_ours(self, name, tensor):
        return tensor

    def to_ours(self, name, tensor):
        return tensor

    def state(self):
        """Weights and running statistics."""
        return {name: tensor for name, tensor in self.state_dict().items()
                if not name.endswith("num_batches_tracked")}


class Mlp(Model):
    def __init__(self, case):
        super().__init__()
        self.activation = functional.relu if case["case"] == "mlp relu" else functional.gelu
        self.count = sum(name.endswith(".weight") for name in case["first"])
        for i in range(1, self.count + 1):
            outs, ins = case["first"]["fc%d.weight" % i].shape
            self.add_module("fc%d" % i, nn.Linear(ins, outs))

    def forward(self, x):
        for i in range(1, self.count + 1):
            x = getattr(self, "fc%d" % i)(x)
            x = self.activation(x) if i < self.count else x
        return x


class Gpt(Model):
    """GPT-2 from PyTorch's own transformer layers."""

    # What PyTorch's transformer layer calls the parts of a block of GPT-2.
    NAMES = {"norm1.": "ln_1.", "self_attn.in_proj_": "attn.c_attn.", "self_attn.out_proj.":
             "attn.c_proj.", "norm2.": "ln_2.", "linear1.": "mlp.c_fc.", "linear2.": "mlp.c_proj."}

    def __init__(self, case):
        super().__init__()
        (vocabulary, width), context = (case["first"]["wte.weight"].shape,
                                        case["first"]["wpe.weight"].shape[0])
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(nn.TransformerEncoderLayer(
            width, case["heads"], 4 * width, dropout=0.0, batch_first=True, norm_first=True,
            activation=lambda x: functional.gelu(x, approximate="tanh"))
            for _ in range(case["layers"]))
        self.ln_f = nn.LayerNorm(width)
        self.mask = torch.ones(context, context, dtype=torch.bool).triu(1)

    def our_name(self, name):
        for theirs, ours in self.NAMES.items():
            name = name.replace(theirs, ours)
        return name

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x, src_mask=self.mask)
        return self.ln_f(x) @ self.wte.weight.t()


class ImageModel(Model):
    """A model for images: kernels have four dimensions."""

    def __init__(self, case):
        super().__init__()
        self.image = case["image"]  # H, W, C

    def images(self, x):
        return x.reshape(-1, *self.image).permute(0, 3, 1, 2).contiguous()

    def from_ours(self, name, tensor):
        return tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor

    def to_ours(self, name, tensor):
        return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


class Cnn(ImageModel):
    """conv1, conv2, ..., each with a pool; fc1, fc2, ..."""

    def __init__(self, case):
        super().__init__(case)
        first = case["first"]
        self.conv_count = sum(tensor.dim() == 4 for tensor in first.values())
        self.fc_count = sum(name.endswith(".weight") for name in first) - self.conv_count
        for i in range(1, self.conv_count + 1):
            outs, height, width, ins = first["conv%d.weight" % i].shape
            self.add_module("conv%d" % i, nn.Conv2d(ins, outs, (height, width), padding="same"))
        for i in range(1, self.fc_count + 1):
            outs, ins = first["fc%d.weight" % i].shape
            self.add_module("fc%d" % i, nn.Linear(ins, outs))
        halvings = 2 ** self.conv_count
        self.flat = (self.image[0] // halvings, self.image[1] // halvings,
                     first["conv%d.weight" % self.conv_count].shape[0])  # H, W, C

    def from_ours(self, name, tensor):
        if name != "fc1.weight":
            return super().from_ours(name, tensor)
        return tensor.reshape(-1, *self.flat).permute(0, 3, 1, 2).reshape(tensor.shape)

    def to_ours(self, name, tensor):
        if name != "fc1.weight":
            return super().to_ours(name, tensor)
        height, width, channels = self.flat
        planes = tensor.reshape(-1, channels, height, width)
        return planes.permute(0, 2, 3, 1).reshape(tensor.shape)

    def forward(self, x):
        x = self.images(x)
        for i in range(1, self.conv_count + 1):
            x = functional.max_pool2d(functional.relu(getattr(self, "conv%d" % i)(x)), 2)
        x = x.flatten(1)
        for i in range(1, self.fc_count + 1):
            x = getattr(self, "fc%d" % i)(x)
            x = functional.relu(x) if i < self.fc_count else x
        return x


class BasicBlock(nn.Module):
    def __init__(self, ins, outs, stride, relu):
        super().__init__()
        self.relu = relu
        self.conv1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outs)
        self.conv2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outs)
        self.downsample = nn.Identity()
        if stride != 1 or ins != outs:
            self.downsample = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outs))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(ImageModel):
    """With the stem for small images."""

    def __init__(self, case):
        super().__init__(case)
        self.conv1 = nn.Conv2d(self.image[2], 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        ins = 64
        for stage, outs in enumerate((64, 128, 256, 512), 1):
            self.add_module("layer%d" % stage, nn.Sequential(
                BasicBlock(ins, outs, 1 if stage == 1 else 2, self.relu),
                BasicBlock(outs, outs, 1, self.relu)))
            ins = outs
        self.fc = nn.Linear(512, case["first"]["fc.weight"].shape[0])

    def relu(self, x):
        return self.rectifier(x)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(self.images(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


MODELS = {"mlp relu": Mlp, "mlp gelu": Mlp, "gpt": Gpt, "cnn": Cnn, "resnet18": ResNet18}
