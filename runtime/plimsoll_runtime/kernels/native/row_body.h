// The small operations of one row; included once per instruction set (see layer_operations.h).

static void rms_norm(const float* input, const float* weight, float epsilon, int size, float* output) {
    vec squares[2] = {};
    int at = 0;
    for (; at + 2 * WIDTH <= size; at += 2 * WIDTH)
        for (int v = 0; v < 2; v++) {
            const vec values = load(input + at + v * WIDTH);
            squares[v] += values * values;
        }
    float sum = sum_lanes(squares[0] + squares[1]);
    for (int rest = at; rest < size; rest++) sum += input[rest] * input[rest];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + epsilon);
    for (at = 0; at + WIDTH <= size; at += WIDTH) store(output + at, load(input + at) * scale * load(weight + at));
    for (; at < size; at++) output[at] = input[at] * scale * weight[at];
}

static void add(float* total, const float* addend, int size) {
    int at = 0;
    for (; at + WIDTH <= size; at += WIDTH) store(total + at, load(total + at) + load(addend + at));
    for (; at < size; at++) total[at] += addend[at];
}

static inline vec silu(vec x) { return x / (1.0f + exponential(-x)); }

static inline vec gelu(vec x) {
    // The tanh form: tanh(y) = 1 - 2 / (e^2y + 1), so that half of 1 + tanh(y) is 1 - 1 / (e^2y + 1).
    const vec inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x * (1.0f - 1.0f / (exponential(2.0f * inner) + 1.0f));
}

template <vec (*ACTIVATE)(vec)>
static inline void activate_multiply(const float* gate, const float* up, int size, float* output) {
    int at = 0;
    for (; at + WIDTH <= size; at += WIDTH) store(output + at, ACTIVATE(load(gate + at)) * load(up + at));
    for (; at < size; at++) output[at] = ACTIVATE(spread(gate[at]))[0] * up[at];
}

static void silu_multiply(const float* gate, const float* up, int size, float* output) {
    activate_multiply<silu>(gate, up, size, output);
}

static void gelu_multiply(const float* gate, const float* up, int size, float* output) {
    activate_multiply<gelu>(gate, up, size, output);
}

static void rotate(float* head, const float* cosines, const float* sines, int head_dim) {
    const int half_dim = head_dim / 2;
    int at = 0;
    for (; at + WIDTH <= half_dim; at += WIDTH) {
        const vec one = load(head + at), other = load(head + half_dim + at);
        const vec cosine = load(cosines + at), sine = load(sines + at);
        store(head + at, one * cosine - other * sine);
        store(head + half_dim + at, other * cosine + one * sine);
    }
    for (; at < half_dim; at++) {
        const float one = head[at], other = head[half_dim + at];
        head[at] = one * cosines[at] - other * sines[at];
        head[half_dim + at] = other * cosines[at] + one * sines[at];
    }
}

// Codes of a group of numbers, a multiple of WIDTH of them; gives the scale.
static half encode(const float* numbers, int size, code* codes) {
    const half scale = to_half(largest_magnitude(numbers, size) / LARGEST_CODE);
    const float step = from_half(scale), inverse = step > 0 ? 1.0f / step : 0.0f;
    for (int at = 0; at < size; at += WIDTH) {
        const vec number = load(numbers + at) * inverse;
        const ivec whole = rounded(larger(smaller(number, spread(LARGEST_CODE)), spread(-LARGEST_CODE)));
        for (int lane = 0; lane < WIDTH; lane++) codes[at + lane].value = static_cast<int8_t>(whole[lane]);
    }
    return scale;
}

static void store_head(const RowTurn& turn, const float* key, const float* value, code* keys, code* values) {
    half* key_scales = reinterpret_cast<half*>(keys + turn.head_dim * PAGE_TOKENS) + turn.place;
    half* value_scales = reinterpret_cast<half*>(values + turn.head_dim * PAGE_TOKENS) + turn.place;
    code* value_pairs = values + turn.place / 2 * 2 * turn.head_dim + turn.place % 2;
    for (int d = 0; d < turn.head_dim; d += CODE_GROUP, key_scales += PAGE_TOKENS, value_scales += PAGE_TOKENS) {
        const int size = turn.head_dim - d < CODE_GROUP ? turn.head_dim - d : CODE_GROUP;
        code codes[CODE_GROUP];
        *key_scales = encode(key + d, size, codes);
        for (int i = 0; i < size; i++) keys[(d + i) / 2 * 2 * PAGE_TOKENS + 2 * turn.place + i % 2] = codes[i];
        *value_scales = encode(value + d, size, codes);
        for (int i = 0; i < size; i++) value_pairs[2 * (d + i)] = codes[i];
    }
}

static void store_row(const RowTurn& turn) {
    const int64_t page_bytes = head_page_bytes(turn.head_dim);
    const float* key = turn.row + turn.num_heads * turn.head_dim;
    const float* value = key + turn.num_kv_heads * turn.head_dim;
    code* keys = static_cast<code*>(turn.keys);
    code* values = static_cast<code*>(turn.values);
    for (int head = 0; head < turn.num_kv_heads; head++)
        store_head(turn, key + head * turn.head_dim, value + head * turn.head_dim, keys + head * page_bytes,
                   values + head * page_bytes);
}

static void turn_row(const RowTurn& turn) {
    const int num_turned = turn.num_heads + turn.num_kv_heads;
    if (turn.bias != nullptr) add(turn.row, turn.bias, (num_turned + turn.num_kv_heads) * turn.head_dim);
    for (int head = 0; head < num_turned; head++) {
        float* values = turn.row + head * turn.head_dim;
        if (turn.head_norms != nullptr)
            rms_norm(values, turn.head_norms + head * turn.head_dim, turn.epsilon, turn.head_dim, values);
        rotate(values, turn.cosines, turn.sines, turn.head_dim);
    }
    store_row(turn);
}
