"""Run by the interpreter of the SGLang test environment: writes a stand-in for `sgl_kernel`, which has no CPU build on
package indexes. SGLang then imports and takes its torch-native paths; calling any kernel raises.

`convert_weight_packed` must stay undeclared: SGLang reads its absence as "no AMX backend".
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

STUB = '''"""A stand-in without kernels, for tests on a CPU: calling any of these raises."""
import torch

_library = torch.library.Library("sgl_kernel", "DEF")
for _name in """
apply_multidimensional_rope_cpu apply_rotary_pos_emb_cpu biased_grouped_topk_cpu bmm_cpu conv3d_embed_cpu
decode_attention_cpu extend_attention_cpu fp8_per_tensor_scaled_mm_cpu fp8_scaled_mm_cpu fused_add_rmsnorm_cpu
fused_dual_residual_rmsnorm_cpu fused_experts_cpu fused_gdn_gating_cpu fused_input_proj_cpu fused_moe_router_cpu
fused_qk_gemma_rmsnorm_cpu fused_qk_gemma_rmsnorm_with_gate_cpu fused_qk_norm_cpu fused_qk_norm_rope_cpu
fused_qk_rmsnorm_apply_from_stats_cpu fused_qk_rmsnorm_cpu fused_qk_rmsnorm_sumsq_cpu
fused_qkvzba_split_reshape_cat_contiguous_cpu fused_qkvzba_split_reshape_cat_cpu
fused_sigmoid_gating_delta_rule_update_cpu
fused_sigmoid_mul_cpu gelu_and_mul_cpu gelu_tanh_and_mul_cpu gemma3_rmsnorm_cpu gemma4_rmsnorm_cpu
gemma_fused_add_rmsnorm_cpu gemma_rmsnorm_cpu grouped_topk_cpu image_preprocess_cpu int4_scaled_mm_cpu l2norm_cpu
layernorm_cpu multimodal_rotary_embedding_cpu rmsnorm_cpu rotary_embedding_cpu shared_expert_cpu silu_and_mul_cpu
store_cache_cpu topk_sigmoid_cpu topk_softmax_cpu
""".split():
    _library.define(_name + "(Tensor a, Tensor b) -> Tensor")


def copy_all_layer_kv_cache_cpu(*args, **kwargs):
    raise NotImplementedError("sgl_kernel stand-in: copy_all_layer_kv_cache_cpu")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError("sgl_kernel stand-in: " + name)

    return missing
'''

if __name__ == "__main__":
    folder = Path(sysconfig.get_paths()["purelib"]) / "sgl_kernel"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(STUB, "utf-8")
