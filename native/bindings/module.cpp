// The Python module `godmw._native`: arrays in by DLPack, everything checked before anything is written.
//
// An array type that offers DLPack's C exchange table (newer versions of torch do) is read through it, which
// costs tens of nanoseconds; any other goes through nanobind's import, which for torch costs microseconds.
// The GIL is released while elements move. No header of torch or numpy is needed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "godmw/isa.hpp"
#include "godmw/pack.hpp"

namespace nb = nanobind;
using nb::dlpack::dltensor;

namespace {

constexpr int CPU = 1, CUDA_HOST = 3;  // DLDeviceType
constexpr Py_ssize_t FLAT = -1;        // the flat buffer's index among the arrays of a call

// DLPackExchangeAPI of DLPack 1.3.
struct ExchangeTable {
    std::uint32_t major, minor;
    void* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*borrow)(void* object, dltensor* out);  // valid while the object lives; may be null
    void* current_stream;
};

[[noreturn]] void refuse(Py_ssize_t index, const std::string& why) {
    const std::string name = index == FLAT ? "the flat buffer" : "tensor " + std::to_string(index);
    throw std::invalid_argument(name + " " + why);
}

bool is_contiguous(const dltensor& tensor) {
    std::int64_t expected = 1;
    for (int i = tensor.ndim - 1; tensor.strides != nullptr && i >= 0; --i) {
        if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
        expected *= tensor.shape[i];
    }
    return true;
}

template <class T>
godmw::Piece<T> view(const dltensor& tensor, Py_ssize_t index) {
    if (tensor.device.device_type != CPU && tensor.device.device_type != CUDA_HOST)
        refuse(index, "is not in CPU memory (DLPack device type " +
                          std::to_string(tensor.device.device_type) + ")");
    if (tensor.dtype != nb::dtype<float>())
        refuse(index, "is not float32 (DLPack type code " + std::to_string(tensor.dtype.code) + ", " +
                          std::to_string(tensor.dtype.bits) + " bits)");
    std::size_t size = 1;
    for (int i = 0; i < tensor.ndim; ++i) size *= (std::size_t)tensor.shape[i];
    if (size > 0 && !is_contiguous(tensor)) refuse(index, "is not contiguous");
    if (size > 0 && tensor.data == nullptr) refuse(index, "has no memory");
    auto* data = reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
    return {data, size, 0};
}

// Reads arrays of T = float (writable) or const float, and keeps alive what it had to import.
template <class T>
class Reader {
public:
    godmw::Piece<T> read(nb::handle array, Py_ssize_t index) {
        if (Py_TYPE(array.ptr()) != type_) {
            type_ = Py_TYPE(array.ptr());
            table_ = table_of(type_);
        }
        if (table_ == nullptr) return view<T>(import(array, index), index);
        dltensor tensor;
        if (table_->borrow(array.ptr(), &tensor) != 0) {
            nb::python_error error;
            refuse(index, std::string("cannot be read: ") + nb::str(error.value()).c_str());
        }
        return view<T>(tensor, index);
    }

private:
    using Array = std::conditional_t<std::is_const_v<T>, nb::ndarray<nb::ro>, nb::ndarray<>>;

    static const ExchangeTable* table_of(PyTypeObject* type) {
        constexpr const char* name = "dlpack_exchange_api";
        nb::object capsule =
            nb::getattr(nb::handle((PyObject*)type), "__dlpack_c_exchange_api__", nb::none());
        if (!PyCapsule_IsValid(capsule.ptr(), name)) return nullptr;
        auto* table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), name));
        return table->major == 1 && table->borrow != nullptr ? table : nullptr;
    }

    dltensor import(nb::handle array, Py_ssize_t index) {
        Array imported;
        if (!nb::try_cast<Array>(array, imported, false))
            refuse(index, std::string("is not an array that can be ") +
                              (std::is_const_v<T> ? "read: " : "written: ") + nb::inst_name(array).c_str());
        dltensor tensor;
        tensor.data = const_cast<void*>(static_cast<const void*>(imported.data()));
        tensor.device = {imported.device_type(), imported.device_id()};
        tensor.ndim = static_cast<std::int32_t>(imported.ndim());
        tensor.dtype = imported.dtype();
        tensor.shape = const_cast<std::int64_t*>(imported.shape_ptr());
        tensor.strides = const_cast<std::int64_t*>(imported.stride_ptr());
        kept_.push_back(std::move(imported));
        return tensor;
    }

    PyTypeObject* type_ = nullptr;
    const ExchangeTable* table_ = nullptr;
    std::vector<Array> kept_;
};

template <class T>
godmw::Flat read_flat(Reader<T>& reader, nb::handle flat) {
    const godmw::Piece<T> memory = reader.read(flat, FLAT);
    return {const_cast<float*>(memory.data), memory.size};  // unpack only reads it
}

template <class T>
std::vector<godmw::Piece<T>> read_pieces(Reader<T>& reader, const godmw::Flat& flat, nb::handle offsets,
                                         nb::handle tensors) {
    const nb::object offset_items = nb::steal(PySequence_Fast(offsets.ptr(), "offsets is not a sequence"));
    if (!offset_items.is_valid()) throw nb::python_error();
    const nb::object tensor_items = nb::steal(PySequence_Fast(tensors.ptr(), "tensors is not a sequence"));
    if (!tensor_items.is_valid()) throw nb::python_error();
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(tensor_items.ptr());
    if (PySequence_Fast_GET_SIZE(offset_items.ptr()) != count)
        throw std::invalid_argument(std::to_string(PySequence_Fast_GET_SIZE(offset_items.ptr())) +
                                    " offsets for " + std::to_string(count) + " tensors");
    std::vector<godmw::Piece<T>> pieces;
    pieces.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
        pieces.push_back(reader.read(PySequence_Fast_GET_ITEM(tensor_items.ptr(), i), i));
        const Py_ssize_t offset =
            PyNumber_AsSsize_t(PySequence_Fast_GET_ITEM(offset_items.ptr(), i), nullptr);
        if (offset == -1 && PyErr_Occurred()) throw nb::python_error();
        if (offset < 0) refuse(i, "has the negative offset " + std::to_string(offset));
        pieces.back().offset = static_cast<std::size_t>(offset);
    }
    godmw::check(flat, pieces);
    return pieces;
}

void pack(nb::handle flat_array, nb::handle offsets, nb::handle tensors, double weight, bool accumulate) {
    const auto rounded = static_cast<float>(weight);
    if (!std::isfinite(rounded)) throw std::invalid_argument("the weight is not finite in float32");
    Reader<float> flat_reader;
    Reader<const float> reader;
    const godmw::Flat flat = read_flat(flat_reader, flat_array);
    const auto pieces = read_pieces(reader, flat, offsets, tensors);
    nb::gil_scoped_release released;
    godmw::pack(flat, pieces, rounded, accumulate);
}

void unpack(nb::handle flat_array, nb::handle offsets, nb::handle tensors, double divisor) {
    const auto rounded = static_cast<float>(divisor);
    if (!std::isfinite(rounded) || rounded == 0.0f)
        throw std::invalid_argument("the divisor is zero or not finite in float32");
    Reader<const float> flat_reader;
    Reader<float> reader;
    const godmw::Flat flat = read_flat(flat_reader, flat_array);
    const auto pieces = read_pieces(reader, flat, offsets, tensors);
    nb::gil_scoped_release released;
    godmw::unpack(flat, pieces, rounded);
}

void limit_isa(const char* limit) {
    if (!godmw::limit_isa(limit))
        throw std::invalid_argument(std::string("no instruction set is called ") + limit);
}

}  // namespace

NB_MODULE(_native, module) {
    module.def("pack", &pack, nb::arg("flat"), nb::arg("offsets"), nb::arg("tensors"), nb::arg("weight"),
               nb::arg("accumulate"));
    module.def("unpack", &unpack, nb::arg("flat"), nb::arg("offsets"), nb::arg("tensors"),
               nb::arg("divisor"));
    module.def("isa", [] { return godmw::loops().isa; });
    module.def("limit_isa", &limit_isa, nb::arg("limit"));
}
