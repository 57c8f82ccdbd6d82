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

template <typename Element>
static void store_row(const RowTurn& turn) {
    const int page_size = turn.head_dim * PAGE_TOKENS;
    const float* key = turn.row + turn.num_heads * turn.head_dim;
    const float* value = key + turn.num_kv_heads * turn.head_dim;
    for (int head = 0; head < turn.num_kv_heads; head++) {
        Element converted[MAX_HEAD_DIM];
        Element* keys = static_cast<Element*>(turn.keys) + head * page_size + turn.place;
        Element* values = static_cast<Element*>(turn.values) + head * page_size + turn.place * turn.head_dim;
        for (int d = 0; d < turn.head_dim; d += WIDTH) {
            store(converted + d, load(key + head * turn.head_dim + d));
            store(values + d, load(value + head * turn.head_dim + d));
        }
        for (int d = 0; d < turn.head_dim; d++) keys[d * PAGE_TOKENS] = converted[d];
    }
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
    if (turn.is_half) {
        store_row<half>(turn);
    } else {
        store_row<float>(turn);
    }
}
