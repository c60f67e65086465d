// What compiled graphs call: our kernels behind the functions that PyTorch keeps stable for such graphs.

#include <cstring>
#include <initializer_list>

#include "attention.h"

extern "C" {

void draftwise_linear_float32(const void *, const void *, const void *, void *, std::int64_t, std::int64_t,
                              std::int64_t);
void draftwise_linear_widened(const void *, const void *, const void *, void *, std::int64_t, std::int64_t,
                              std::int64_t);
void draftwise_linear_widened_float16(const void *, const void *, const void *, void *, std::int64_t,
                                      std::int64_t, std::int64_t);
void draftwise_linear_4_bits(const void *, const void *, const void *, void *, std::int64_t, std::int64_t,
                             std::int64_t);
void draftwise_linear_8_bits(const void *, const void *, const void *, void *, std::int64_t, std::int64_t,
                             std::int64_t);
void draftwise_linear_bfloat16(const void *, const void *, const void *, void *, std::int64_t, std::int64_t,
                               std::int64_t);

struct AtenTensorOpaque;
using Tensor = AtenTensorOpaque *;
std::int32_t aoti_torch_get_data_ptr(Tensor, void **);
std::int32_t aoti_torch_get_dim(Tensor, std::int64_t *);
std::int32_t aoti_torch_get_sizes(Tensor, std::int64_t **);
std::int32_t aoti_torch_get_strides(Tensor, std::int64_t **);
std::int32_t aoti_torch_empty_strided(std::int64_t, const std::int64_t *, const std::int64_t *, std::int32_t,
                                      std::int32_t, std::int32_t, Tensor *);
std::int32_t aoti_torch_get_dtype(Tensor, std::int32_t *);
std::int32_t aoti_torch_dtype_float32();
std::int32_t aoti_torch_dtype_bfloat16();
std::int32_t aoti_torch_dtype_float16();
std::int32_t aoti_torch_dtype_int32();
std::int32_t aoti_torch_dtype_int8();
std::int32_t aoti_torch_device_type_cpu();

}

static std::int32_t made(std::int64_t dim, const std::int64_t *sizes, std::int32_t dtype, Tensor *result) {
    std::int64_t strides[8];
    for (std::int64_t i = dim - 1, stride = 1; i >= 0; stride *= sizes[i--]) strides[i] = stride;
    return aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, result);
}

template <class Element>
static std::int32_t data(Tensor of, Element **found) {
    void *at;
    const std::int32_t error = aoti_torch_get_data_ptr(of, &at);
    *found = static_cast<Element *>(at);
    return error;
}

extern "C" {

// x of shape (..., inputs), contiguous; `shape` has that of the weight, (outputs, inputs).
std::int32_t aoti_torch_cpu_panel_linear(Tensor x, Tensor packed, Tensor shape, Tensor *bias, Tensor *result) {
    std::int64_t dim, *sizes, *weight, wanted[8], tokens = 1;
    std::int32_t dtype, stored;
    if (aoti_torch_get_dim(x, &dim) || dim > 8 || aoti_torch_get_sizes(x, &sizes)) return 1;
    if (aoti_torch_get_sizes(shape, &weight)) return 1;
    for (std::int64_t i = 0; i < dim; i++) wanted[i] = sizes[i];
    for (std::int64_t i = 0; i + 1 < dim; i++) tokens *= sizes[i];
    wanted[dim - 1] = weight[0];
    void *in, *weights, *added = nullptr, *out;
    if (aoti_torch_get_dtype(x, &dtype) || aoti_torch_get_dtype(packed, &stored)) return 1;
    if (made(dim, wanted, dtype, result)) return 1;
    if (data(*result, &out) || data(x, &in) || data(packed, &weights) || (bias && data(*bias, &added))) return 1;
    const bool full = dtype == aoti_torch_dtype_float32(), half = stored == aoti_torch_dtype_bfloat16();
    if (full && half)
        draftwise_linear_widened(in, weights, added, out, tokens, weight[0], weight[1]);
    else if (full && stored == aoti_torch_dtype_float16())
        draftwise_linear_widened_float16(in, weights, added, out, tokens, weight[0], weight[1]);
    else if (full && stored == aoti_torch_dtype_int32())
        draftwise_linear_4_bits(in, weights, added, out, tokens, weight[0], weight[1]);
    else if (full && stored == aoti_torch_dtype_int8())
        draftwise_linear_8_bits(in, weights, added, out, tokens, weight[0], weight[1]);
    else if (full && stored == dtype)
        draftwise_linear_float32(in, weights, added, out, tokens, weight[0], weight[1]);
    else if (half && stored == dtype)
        draftwise_linear_bfloat16(in, weights, added, out, tokens, weight[0], weight[1]);
    else
        return 1;
    return 0;
}

// query (rows, heads, width, size), key and value (rows, shared heads, slots, size), mask (rows, 1, width, slots);
// the result is (rows, width, heads, value size).
std::int32_t aoti_torch_cpu_head_attention(Tensor query, Tensor key, Tensor value, Tensor mask, double scale,
                                           Tensor *result) {
    std::int64_t *of_query, *of_key, *of_value, *steps[4];
    const Tensor tensors[4] = {query, key, value, mask};
    if (aoti_torch_get_sizes(query, &of_query) || aoti_torch_get_sizes(key, &of_key)) return 1;
    if (aoti_torch_get_sizes(value, &of_value)) return 1;
    for (int i = 0; i < 4; i++)
        if (aoti_torch_get_strides(tensors[i], &steps[i]) || steps[i][3] != 1) return 1;
    Attention a;
    std::int32_t dtype, other;
    if (aoti_torch_get_dtype(query, &dtype)) return 1;
    for (const Tensor one : {key, value, mask})
        if (aoti_torch_get_dtype(one, &other) || other != dtype) return 1;
    a.half = dtype == aoti_torch_dtype_bfloat16();
    if (!a.half && dtype != aoti_torch_dtype_float32()) return 1;
    if (data(query, &a.query) || data(key, &a.key) || data(value, &a.value) || data(mask, &a.mask)) return 1;
    a.rows = of_query[0], a.shared = of_key[1], a.groups = of_query[1] / of_key[1], a.width = of_query[2];
    a.total = of_key[2], a.key_size = of_key[3], a.value_size = of_value[3], a.scale = static_cast<float>(scale);
    std::memcpy(a.query_step, steps[0], sizeof a.query_step);
    std::memcpy(a.key_step, steps[1], sizeof a.key_step);
    std::memcpy(a.value_step, steps[2], sizeof a.value_step);
    a.mask_step[0] = steps[3][0], a.mask_step[1] = steps[3][2];
    const std::int64_t wanted[4] = {a.rows, a.width, of_query[1], a.value_size};
    if (made(4, wanted, dtype, result) || data(*result, &a.out)) return 1;
    draftwise_attention(&a);
    return 0;
}
}
