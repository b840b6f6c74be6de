"""Tokens are generated one by one; the context is a tensor that is replaced by a longer one."""

import torch
from torch import nn

attention = nn.MultiheadAttention(256, 4, batch_first=True).eval()
token = torch.randn(16, 1, 256)
context = token
with torch.inference_mode():
    for _ in range(40):
        token, _weights = attention(token, context, context)
        context = torch.cat([context, token], dim=1)
print(tuple(context.shape))
