"""Work of libraries that use a GPU: prints a hash of each result.

    python gpu_libraries.py [--device cuda|cpu] NAME …

Settings are such that a library computes the same bits each time, where it can.
"""

import argparse
import hashlib
import os
import sys

sys.path.append(sys.path.pop(0))  # last: this folder has an accelerate, as Hugging Face does
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")


def show(name, *values):
    """Prints a hash of arrays' shapes, types and bytes."""
    import numpy as np

    digest = hashlib.sha256()
    for value in values:
        if hasattr(value, "detach"):
            value = value.detach().cpu().contiguous()
            value = value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy()
        elif hasattr(value, "get"):
            value = value.get()
        value = np.ascontiguousarray(value)
        digest.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
    print(f"{name}: {digest.hexdigest()[:16]}", flush=True)


def torch_on(device):
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(2)
    return torch, lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(
        device
    )


def linalg(device):
    torch, random = torch_on(device)
    a = random(96, 96)
    positive = a @ a.T + 96 * torch.eye(96, device=device)
    show("matmul", a @ a, torch.addmm(a, a, a), torch.einsum("ij,kj->ik", a, a))
    show("half", a.half() @ a.half() if device != "cpu" else a.bfloat16() @ a.bfloat16())
    show("solve", torch.linalg.solve(positive, a), torch.linalg.inv(positive))
    show("cholesky", torch.linalg.cholesky(positive), torch.linalg.det(positive))
    show("qr", *torch.linalg.qr(a))
    show("svd", torch.linalg.svdvals(a))
    show("eigh", torch.linalg.eigvalsh(positive))
    show("lstsq", torch.linalg.lstsq(a, a[:, :3]).solution)
    batch = random(16, 8, 8)
    show("batched", torch.linalg.lu_factor(batch)[0], torch.matrix_exp(batch))
    show("sort", *torch.sort(a, dim=1), torch.cumsum(a, 0), torch.topk(a, 5).values)


def fft(device):
    torch, random = torch_on(device)
    x = random(8, 1000)
    show("fft", torch.view_as_real(torch.fft.fft(x)), torch.view_as_real(torch.fft.rfft2(x)))
    show("ifft", torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fftshift(x))
    window = torch.hann_window(256, device=device)
    show("stft", torch.view_as_real(torch.stft(x, 256, window=window, return_complex=True)))


def attention(device):
    torch, random = torch_on(device)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = torch.bfloat16 if device != "cpu" else torch.float32
    q, k, v = (random(2, 4, 256, 64).to(kind).requires_grad_() for _ in range(3))
    backends = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    if device != "cpu":
        backends += [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    for backend in backends:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        show(f"attention {backend.name}", out)
    out.sum().backward()
    show("attention gradient", q.grad.abs() > 0)


def training(device):
    torch, random = torch_on(device)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = random(256, 64), torch.arange(256, device=device) % 10
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    show("training", torch.stack(losses), *model.parameters())
    with torch.autocast("cuda" if device != "cpu" else "cpu", torch.bfloat16):
        show("autocast", model(x))
    if device != "cpu":
        show("memory", [torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()])


def compile(device):
    torch, random = torch_on(device)

    @torch.compile
    def step(x, w):
        return torch.nn.functional.layer_norm(torch.relu(x @ w) * 2 + x, (64,)).softmax(-1)

    x, w = random(128, 64).requires_grad_(), random(64, 64).requires_grad_()
    out = step(x, w)
    out.square().sum().backward()
    show("compile", out, x.grad, w.grad)


def graphs(device):
    torch, random = torch_on(device)
    x, w = random(64, 64), random(64, 64)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            out = torch.tanh(x @ w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.tanh(x @ w) + x
    for i in range(5):
        x.copy_(random(64, 64) * i)
        graph.replay()
        show(f"graph {i}", out)
    net = torch.nn.Linear(64, 64).to(device)
    callable = torch.cuda.make_graphed_callables(net, (x.clone().requires_grad_(),))
    out = callable(x.clone().requires_grad_())
    out.sum().backward()
    show("graphed callable", out, net.weight.grad)


def unet(device):
    """A small diffusion U-Net with attention, and five steps of sampling."""
    torch, random = torch_on(device)
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, width_in, width):
            super().__init__()
            self.first, self.second = (
                nn.Conv2d(width_in, width, 3, padding=1),
                nn.Conv2d(width, width, 3, padding=1),
            )
            self.norm, self.time = nn.GroupNorm(8, width), nn.Linear(32, width)
            self.skip = nn.Conv2d(width_in, width, 1)

        def forward(self, x, time):
            h = nn.functional.silu(self.norm(self.first(x))) + self.time(time)[:, :, None, None]
            return self.second(h) + self.skip(x)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.middle, self.up = Block(3, 32), Block(32, 64), Block(96, 32)
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
            self.out = nn.Conv2d(32, 3, 3, padding=1)

        def forward(self, x, t):
            scale = torch.exp(-torch.arange(16, device=x.device) / 4)
            time = torch.cat([(t * scale).sin(), (t * scale).cos()])[None].expand(len(x), -1)
            down = self.down(x, time)
            h = self.middle(nn.functional.avg_pool2d(down, 2), time)
            flat = h.flatten(2).transpose(1, 2)
            h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(
                h.shape
            )
            h = torch.cat([nn.functional.interpolate(h, scale_factor=2), down], 1)
            return self.out(self.up(h, time))

    model = UNet().to(device)
    x = random(2, 3, 32, 32)
    with torch.no_grad():
        for t in range(5, 0, -1):
            x = x - 0.1 * model(x, torch.tensor(float(t), device=device))
    show("U-Net", x)
    model(x, torch.tensor(1.0, device=device)).square().mean().backward()
    show("U-Net gradient", *(each.grad for each in model.parameters()))


def resnet(device):
    _, random = torch_on(device)
    import torchvision

    model = torchvision.models.resnet18(weights=None).to(device)
    x = random(2, 3, 96, 96)
    loss = model(x).square().mean()
    loss.backward()
    show("resnet", loss, model.conv1.weight.grad)
    show("nms", torchvision.ops.nms(x[0, 0, :, :4].abs().cumsum(1), x[0, 0, :, 5], 0.5))


def vit(device):
    _, random = torch_on(device)
    import timm

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).to(device).eval()
    show("ViT", model(random(1, 3, 224, 224)))


def bert(device):
    torch, _ = torch_on(device)
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertModel(BertConfig(**sizes, intermediate_size=128)).to(device).eval()
    show("BERT", model(torch.arange(64, device=device)[None]).last_hidden_state)


def processes(device):
    torch, _ = torch_on(device)
    data = torch.utils.data.TensorDataset(torch.arange(64.0), torch.arange(64))
    loader = torch.utils.data.DataLoader(data, 8, num_workers=2)
    show("loader", torch.stack([x.to(device).sum() for x, _ in loader]))
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=in_child, args=(queue, device))
    child.start()
    print("child:", queue.get())
    child.join()
    print("status:", child.exitcode)


def in_child(queue, device):
    _, random = torch_on(device)
    queue.put(float((random(8, 8) @ random(8, 8)).sum()))


def collectives(device):
    """Collectives of two ranks, and training whose gradients are reduced; on GPUs, two of them."""
    import tempfile

    torch, _ = torch_on("cpu")
    if device != "cpu" and torch.cuda.device_count() < 2:
        print("one device: two are needed")
        return
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(rank_of, (device, f"{directory}/rendezvous"), nprocs=2)


def rank_of(rank, device, rendezvous):
    here = device if device == "cpu" else f"{device}:{rank}"
    torch, random = torch_on(here)
    dist = torch.distributed
    backend = "gloo" if device == "cpu" else "nccl"
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    mine = random(64, 64) * (rank + 1)
    total, first = mine.clone(), mine.clone()
    dist.all_reduce(total)
    dist.broadcast(first, 0)
    every = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(every, mine)
    other = torch.empty_like(mine)
    (dist.send if rank == 0 else dist.recv)(mine if rank == 0 else other, 1 - rank)
    if rank == 1:
        total += other
    dist.all_reduce(total)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8).to(here))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        optimizer.step()
    if rank == 0:
        show("collectives", total, first, *every)
        show("distributed training", *model.parameters())
    dist.barrier()
    dist.destroy_process_group()


def cupy(_device):
    import cupy as cp

    x = cp.arange(4096, dtype=cp.float32).reshape(64, 64) / 100
    show("cupy", x @ x, cp.sin(x).sum(0), cp.sort(x[::-1], axis=0), cp.fft.fft(x).real)
    show("cupy linalg", cp.linalg.solve(x + 100 * cp.eye(64, dtype=cp.float32), x))
    scale = cp.RawKernel(
        'extern "C" __global__ void scale(float *x, float f)'
        "{ x[blockIdx.x * blockDim.x + threadIdx.x] *= f; }",
        "scale",
    )
    scale((16,), (256,), (x, cp.float32(3)))
    square = cp.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
    reduction = cp.ReductionKernel("float32 x", "float32 y", "x", "a + b", "y = a", "0", "total")
    show("cupy kernels", x, square(x), reduction(x, axis=1))
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        y = cp.ones(1 << 20).cumsum()
    stream.synchronize()
    show("cupy stream", y)


def jax(device):
    if device == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import jax.numpy as jnp

    x = jax.random.normal(jax.random.key(0), (128, 128))
    show("jax", jax.jit(lambda a: jnp.tanh(a @ a.T))(x), jnp.fft.fft(x).real, jnp.sort(x))
    show("jax grad", jax.jit(jax.grad(lambda a: (jax.nn.softmax(a @ a) ** 2).sum()))(x))
    show("jax scan", jax.lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), jnp.zeros(128), x)[1])
    show("jax vmap", jax.vmap(lambda r: jnp.linalg.norm(r))(x))
    image = x.reshape(1, 1, 128, 128)
    show("jax conv", jax.lax.conv(image, jnp.ones((4, 1, 3, 3)), (1, 1), "SAME"))
    show("jax linalg", jnp.linalg.cholesky(x @ x.T + 200 * jnp.eye(128)))


def numba_cuda(_device):
    import numpy as np
    from numba import cuda

    @cuda.jit
    def add(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = 2 * x[i] + 1

    @cuda.jit
    def total(x, out):
        shared = cuda.shared.array(128, np.float32)
        i = cuda.grid(1)
        shared[cuda.threadIdx.x] = x[i] if i < x.size else 0
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            part = 0.0
            for j in range(128):
                part += shared[j]
            out[cuda.blockIdx.x] = part
        cuda.atomic.add(out, out.size - 1, 1)

    x = cuda.to_device(np.arange(1024, dtype=np.float32))
    y, out = cuda.device_array_like(x), cuda.to_device(np.zeros(9, np.float32))
    add[8, 128](x, y)
    total[8, 128](x, out)
    show("numba", y.copy_to_host(), out.copy_to_host())
    print("numba sum:", float(cuda.reduce(lambda a, b: a + b)(y)))


def triton(device):
    torch, random = torch_on(device)
    from triton_kernels import matmul, softmax

    x, w = random(128, 128), random(128, 128)
    out = torch.empty_like(x)
    softmax[(128,)](x, out, 128, BLOCK=128)
    show("triton softmax", out)
    matmul[(2, 2)](x, w, out, 128, BLOCK=64)
    show("triton matmul", out)


WORK = {
    each.__name__: each
    for each in (
        linalg, fft, attention, training, compile, graphs, unet, resnet, vit, bert, processes,
        collectives, cupy, jax, numba_cuda, triton,
    )
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("names", nargs="+", choices=WORK)
    given = parser.parse_args()
    for name in given.names:
        WORK[name](given.device)
    sys.exit(0)
