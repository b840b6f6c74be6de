"""Tokens are generated one by one; the context is a tensor that is replaced by a longer one."""

import torch
from torch import nn

attention = nn.MultiheadAttention(512, 8, batch_first=True).eval()
token = torch.randn(64, 1, 512)
context = token
with torch.inference_mode():
    for _ in range(30):
        token, _weights = attention(token, context, context)
        context = torch.cat([context, token], dim=1)
print(tuple(context.shape))
