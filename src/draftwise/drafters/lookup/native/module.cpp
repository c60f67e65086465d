// The two indices as types of Python, with the methods of ../automaton.py and ../ngrams.py that drafters call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <new>

#include "automaton.h"
#include "ngrams.h"

namespace {

template <class Index> struct Object {
    PyObject_HEAD Index it;
};

template <class Index> Index &of(PyObject *self) { return reinterpret_cast<Object<Index> *>(self)->it; }

template <class Index> void drop(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    of<Index>(self).~Index();
    type->tp_free(self);
    Py_DECREF(type);
}

template <class Work> PyObject *guarded(Work work) {
    try {
        return work();
    } catch (const std::exception &) {
        return PyErr_NoMemory();
    }
}

bool read(PyObject *from, int32_t &to) {
    const long value = PyLong_AsLong(from);
    if (value == -1 && PyErr_Occurred()) return false;
    to = int32_t(value);
    if (to == value) return true;
    PyErr_Format(PyExc_OverflowError, "%ld is no 32-bit number", value);
    return false;
}

bool read(PyObject *from, double &to) {
    to = PyFloat_AsDouble(from);
    return to != -1.0 || !PyErr_Occurred();
}

bool read(PyObject *from, std::vector<int32_t> &to) {
    PyObject *fast = PySequence_Fast(from, "token ids are a sequence");
    if (!fast) return false;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    PyObject **items = PySequence_Fast_ITEMS(fast);
    bool right = true;
    try {
        to.resize(size_t(n));
    } catch (const std::exception &) {
        PyErr_NoMemory();
        right = false;
    }
    for (Py_ssize_t i = 0; right && i < n; ++i) right = read(items[i], to[size_t(i)]);
    Py_DECREF(fast);
    return right;
}

bool read(PyObject *from, Walks &to) {
    return read(PyTuple_GetItem(from, 0), to.tries) && read(PyTuple_GetItem(from, 1), to.factor) &&
           read(PyTuple_GetItem(from, 2), to.offset) && read(PyTuple_GetItem(from, 3), to.least);
}

// The arguments of a call, in order.
template <class... Types> bool arguments(PyObject *const *given, Py_ssize_t n, Types &...to) {
    if (n != Py_ssize_t(sizeof...(to))) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", sizeof...(to), n);
        return false;
    }
    return (read(*given++, to) && ...);
}

// A list of what `make` returns for 0, 1, ... n - 1.
template <class Make> PyObject *listed(size_t n, Make make) {
    PyObject *list = PyList_New(Py_ssize_t(n));
    for (size_t i = 0; list && i < n; ++i) {
        PyObject *item = make(i);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, Py_ssize_t(i), item);
    }
    return list;
}

// -- Automaton ----------------------------------------------------------------------------------------

PyObject *automaton_new(PyTypeObject *type, PyObject *args, PyObject *) {
    int32_t depth;
    if (!PyArg_ParseTuple(args, "i", &depth)) return nullptr;
    PyObject *self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    return guarded([&] { return new (&of<Automaton>(self)) Automaton(depth), self; });
}

bool has(const Automaton &it, int32_t state) {
    if (state >= 0 && size_t(state) < it.states.size()) return true;
    PyErr_Format(PyExc_IndexError, "there is no state %d", int(state));
    return false;
}

template <auto Field> PyObject *number(PyObject *self, void *) {
    return PyLong_FromLongLong(of<Automaton>(self).*Field);
}

PyObject *begin(PyObject *self, PyObject *) {
    of<Automaton>(self).begin();
    Py_RETURN_NONE;
}

template <class Index> PyObject *extend(PyObject *self, PyObject *given) {
    return guarded([&]() -> PyObject * {
        std::vector<int32_t> tokens;
        if (!read(given, tokens)) return nullptr;
        of<Index>(self).extend(tokens.data(), int64_t(tokens.size()));
        Py_RETURN_NONE;
    });
}

PyObject *steps(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    return guarded([&]() -> PyObject * {
        int32_t state, span;
        std::vector<int32_t> tokens;
        if (!arguments(given, n, state, span, tokens) || !has(of<Automaton>(self), state)) return nullptr;
        for (const int32_t token : tokens) of<Automaton>(self).step(state, span, token);
        return Py_BuildValue("(ii)", state, span);
    });
}

PyObject *automaton_matched(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    int32_t state, span;
    if (!arguments(given, n, state, span) || !has(of<Automaton>(self), state)) return nullptr;
    of<Automaton>(self).followed(state, span);
    return PyLong_FromLong(state ? span : 0);
}

PyObject *counts(PyObject *self, PyObject *given) {
    return guarded([&]() -> PyObject * {
        const Automaton &it = of<Automaton>(self);
        int32_t state;
        if (!read(given, state) || !has(it, state)) return nullptr;
        std::vector<int32_t> found;
        for (int32_t e = it.states[state].first; e != NOTHING; e = it.edges[e].next)
            found.push_back(it.states[it.edges[e].to].count);
        return listed(found.size(), [&](size_t i) { return PyLong_FromLong(found[i]); });
    });
}

PyObject *best_walk(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    return guarded([&]() -> PyObject * {
        const Automaton &it = of<Automaton>(self);
        int32_t state, span, length;
        Walks walks;
        if (!arguments(given, n, state, span, length, walks) || !has(it, state)) return nullptr;
        const Path path = it.best_walk(state, span, length, walks);
        PyObject *found = listed(path.contexts.size(), [&](size_t i) {
            const State &context = it.states[path.contexts[i]];
            const Edge &edge = it.edges[context.best];
            return Py_BuildValue("(iiii)", edge.token, it.states[edge.to].count, context.follows, path.contexts[i]);
        });
        return found ? Py_BuildValue("(dN)", path.score, found) : nullptr;
    });
}

PyMethodDef automaton_methods[] = {
    {"begin", begin, METH_NOARGS, nullptr},
    {"extend", extend<Automaton>, METH_O, nullptr},
    {"steps", reinterpret_cast<PyCFunction>(steps), METH_FASTCALL, nullptr},
    {"matched", reinterpret_cast<PyCFunction>(automaton_matched), METH_FASTCALL, nullptr},
    {"counts", counts, METH_O, nullptr},
    {"best_walk", reinterpret_cast<PyCFunction>(best_walk), METH_FASTCALL, nullptr},
    {},
};

PyGetSetDef automaton_numbers[] = {
    {"depth", number<&Automaton::depth>, nullptr, nullptr, nullptr},
    {"size", number<&Automaton::size>, nullptr, nullptr, nullptr},
    {"match", number<&Automaton::match>, nullptr, nullptr, nullptr},
    {"deepest", number<&Automaton::deepest>, nullptr, nullptr, nullptr},
    {"span", number<&Automaton::span>, nullptr, nullptr, nullptr},
    {},
};

// -- Ngrams -------------------------------------------------------------------------------------------

PyObject *ngrams_new(PyTypeObject *type, PyObject *args, PyObject *) {
    int32_t shortest, longest;
    if (!PyArg_ParseTuple(args, "ii", &shortest, &longest)) return nullptr;
    if (shortest < 1 || longest < shortest) {
        PyErr_Format(PyExc_ValueError, "n-grams of %d to %d tokens", int(shortest), int(longest));
        return nullptr;
    }
    PyObject *self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    return guarded([&] { return new (&of<Ngrams>(self)) Ngrams(shortest, longest), self; });
}

PyObject *ngrams_length(PyObject *self, void *) { return PyLong_FromLong(of<Ngrams>(self).length); }

PyObject *ngrams_matched(PyObject *self, PyObject *given) {
    return guarded([&]() -> PyObject * {
        std::vector<int32_t> tokens;
        if (!read(given, tokens)) return nullptr;
        Ngrams &it = of<Ngrams>(self);
        return PyLong_FromLong(tokens.empty() ? it.length : it.matched(tokens.data(), int64_t(tokens.size())));
    });
}

PyObject *continuation(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    return guarded([&]() -> PyObject * {
        int32_t most;
        std::vector<int32_t> written;
        if (n == 1 ? !arguments(given, n, most) : !arguments(given, n, most, written)) return nullptr;
        std::vector<int32_t> tokens(static_cast<size_t>(most));
        std::vector<double> right(static_cast<size_t>(most));
        Ngrams &it = of<Ngrams>(self);
        const size_t found = size_t(
            it.continuation(written.data(), int64_t(written.size()), most, tokens.data(), right.data()));
        PyObject *list = listed(found, [&](size_t i) { return PyLong_FromLong(tokens[i]); });
        PyObject *shares = list ? listed(found, [&](size_t i) { return PyFloat_FromDouble(right[i]); }) : nullptr;
        if (shares) return Py_BuildValue("(NN)", list, shares);
        Py_XDECREF(list);
        return nullptr;
    });
}

PyMethodDef ngrams_methods[] = {
    {"extend", extend<Ngrams>, METH_O, nullptr},
    {"matched", ngrams_matched, METH_O, nullptr},
    {"continuation", reinterpret_cast<PyCFunction>(continuation), METH_FASTCALL, nullptr},
    {},
};

PyGetSetDef ngrams_numbers[] = {
    {"length", ngrams_length, nullptr, nullptr, nullptr},
    {},
};

// -- The module ---------------------------------------------------------------------------------------

template <class Index>
bool add(PyObject *module, const char *name, newfunc make, PyMethodDef *methods, PyGetSetDef *numbers) {
    PyType_Slot slots[] = {
        {Py_tp_new, reinterpret_cast<void *>(make)},
        {Py_tp_dealloc, reinterpret_cast<void *>(drop<Index>)},
        {Py_tp_methods, methods},
        {Py_tp_getset, numbers},
        {},
    };
    PyType_Spec spec = {name, int(sizeof(Object<Index>)), 0, Py_TPFLAGS_DEFAULT, slots};
    PyObject *type = PyType_FromSpec(&spec);
    const bool added = type && PyModule_AddType(module, reinterpret_cast<PyTypeObject *>(type)) == 0;
    Py_XDECREF(type);
    return added;
}

PyModuleDef lookups = {PyModuleDef_HEAD_INIT, "lookups", nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_lookups() {
    PyObject *module = PyModule_Create(&lookups);
    if (module && !(add<Automaton>(module, "lookups.Automaton", automaton_new, automaton_methods, automaton_numbers) &&
                    add<Ngrams>(module, "lookups.Ngrams", ngrams_new, ngrams_methods, ngrams_numbers)))
        Py_CLEAR(module);
    return module;
}
