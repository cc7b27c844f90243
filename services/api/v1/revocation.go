package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KindRevocation is the name of the kind Revocation.
const KindRevocation = "Revocation"

// Revocation refuses time-limited credentials before they expire: those of a user that were issued before a time, or a
// single one. The Gateways of its namespace end the sessions with these credentials, and accept no new ones. A deleted
// Revocation has no effect any more.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=revoke,categories=stunner
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.user`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.until`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Used by",type=string,JSONPath=`.status.conditions[?(@.type=="InUse")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Credential",type=string,JSONPath=`.spec.credential`,priority=1
type Revocation struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec names the credentials that are refused.
	// +required
	Spec RevocationSpec `json:"spec"`

	// Status reports whether the operator can use the object.
	// +optional
	Status Status `json:"status,omitempty"`
}

// RevocationSpec names the credentials that are refused.
//
// +kubebuilder:validation:XValidation:message="set one of user and credential",rule="has(self.user) != has(self.credential)"
// +kubebuilder:validation:XValidation:message="issuedBefore is for user: a single credential is refused whenever it was issued",rule="!has(self.issuedBefore) || has(self.user)"
// +kubebuilder:validation:XValidation:message="until must be later than issuedBefore",rule="!has(self.until) || !has(self.issuedBefore) || self.until > self.issuedBefore"
type RevocationSpec struct {
	// User is the user id of the refused credentials, as sessions and `stunnerctl cred decode` show it: without expiry and
	// caveats, and with `%` and `:` as the auth service escapes them.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=508
	User string `json:"user,omitempty"`

	// Credential is the whole user name of a single time-limited credential, such as `1893456000:alice`.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=508
	Credential string `json:"credential,omitempty"`

	// IssuedBefore is the time from which on new credentials of the user are accepted. Unset means one second after the
	// creation of the object; in a folder, where objects have no creation time, it must be set. A credential without a time
	// of issue, which the auth service adds for revoked users, counts as issued before.
	//
	// +optional
	IssuedBefore *metav1.Time `json:"issuedBefore,omitempty"`

	// Until is when the last of the refused credentials has expired. From then on the object has no effect. Unset means 366
	// days after issuedBefore, or an hour after the expiry of credential.
	//
	// +optional
	Until *metav1.Time `json:"until,omitempty"`

	// Gateways are the names of the Gateways in the namespace that refuse the credentials. Unset means all.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Gateways []string `json:"gateways,omitempty"`
}

// RevocationList is a list of Revocations.
//
// +kubebuilder:object:root=true
type RevocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Revocation `json:"items"`
}
